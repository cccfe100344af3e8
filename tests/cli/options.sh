#!/usr/bin/env bash
# The options of all commands, from --help=json: one spelling, a range for every number, values at and beyond the limits, names that are
# never abbreviated; and output whose reader is gone.
. "$(dirname "$0")/../support/lib.sh"

python3 - "$LOCKSTEP" <<'PY' || bad "options"
import concurrent.futures, json, re, subprocess, sys
program = sys.argv[1]
bad = 0


def run(words):
    p = subprocess.run([program, *words], capture_output=True, text=True, timeout=60)
    return p.returncode, p.stdout, p.stderr


def fail(text):
    global bad
    bad += 1
    print("FAILED:", text)


overview = run(["--help"])[1]
names = re.findall(r"^  ([a-z]{2,}) .*", overview.split("Commands:")[1].split("First run")[0], re.M)
commands = [[n] for n in names if n not in ("bench", "data")]
commands += [["bench", b] for b in ("scaling", "strategies", "ab", "comm", "gemm", "r3")] + [["data", d] for d in ("list", "fetch")]
commands += [["report", r] for r in ("table", "charts", "verify")]
commands += [["plan", "--schedule", "1f1b"], ["prepare", "--task", "translate"], ["generate", "--task", "translate"]]
work = []
for c in commands:
    code, out, err = run([*c, "--help=json"])
    if code or not out.startswith("{"):
        fail(f"{c} --help=json: exit code {code}: {err}")
        continue
    rows = json.loads(out)["options"]
    first, every = run([*c, "--help"])[1], run([*c, "--help-all"])[1]
    if first != run([*c, "-h"])[1]:
        fail(f"{c}: -h differs from --help")
    hidden = [r["name"] for r in rows if r["help"] and not re.search(rf"^  --{r['name']}\b", first, re.M)]
    if hidden and not first.rstrip().splitlines()[-1].startswith("--help_all lists all"):
        fail(f"{c} --help does not end with a line that names --help_all")
    for page in (first, every):
        for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", page):
            # of other programs: nsys (profile), srun and sbatch (launch)
            if "-" in option[2:] and option not in ("--cuda-event-trace", "--force-overwrite", "--ntasks-per-node", "--no-kill"):
                fail(f"{c}: the help has {option}; write options with _")
    by_name = {r["name"]: r for r in rows}
    for r in rows:
        if r["alias_of"] and r["section"] != by_name[r["alias_of"]]["section"]:
            fail(f"{c}: --{r['name']} is in the section {r['section']}")
        if r["value"] and f"--{r['name']} {r['arg']} for {r['value']}" not in " ".join(every.split()):
            fail(f"{c} --help_all does not have --{r['name']} {r['arg']}")
    for r in rows:
        if "-" in r["name"]:
            fail(f"{c}: --{r['name']}: write it with _")
        if r["help"] and not re.search(rf"^  --{r['name']}\b", every, re.M):
            fail(f"{c} --help_all does not list --{r['name']}")
        if r["alias_of"] and f"--{r['name']}" not in every and by_name[r["alias_of"]]["help"]:
            fail(f"{c} --help_all does not name --{r['name']}")
        if r["kind"] in ("int", "real"):
            if "min" not in r:
                fail(f"{c}: --{r['name']} has no range")
                continue
            refused = ["0", "-1", "1e300", "nan", ""]
            while r["min"] <= {"0": 0, "-1": -1, "1e300": 1e300}.get(refused[0], 1e301) <= r["max"]:
                refused.pop(0)
            work.append((c, r["name"], refused[len(work) % len(refused)]))
    numbers = [r for r in rows if r["kind"] in ("int", "real") and "min" in r]
    for limit in ("min", "max"):  # apart: an option and its other names must agree
        limits = [w for r in numbers for w in (f"--{r['name']}", f"{min(r[limit], 9e15):g}")]
        code, out, err = run([*c, *limits, "--help"])
        if code:
            fail(f"{c}: the limits of its options are refused: {err}")
    long = [r["name"] for r in rows if len(r["name"]) > 4 and r["kind"] != "list"]
    work += [(c, n[:-1], "1") for n in long[:3] if n[:-1] not in by_name]


def try_value(item):
    c, name, value = item
    code, out, err = run([*c, f"--{name}", value, "--help"])
    if code != 2 or len(err.splitlines()) != 1:
        return f"{' '.join(c)} --{name} '{value}': exit code {code}: {err}"
    return None


with concurrent.futures.ThreadPoolExecutor(4) as pool:
    for text in pool.map(try_value, work):
        if text:
            fail(text)
print(f"{len(commands)} commands, {len(work)} values")
sys.exit(1 if bad or len(work) < 150 else 0)
PY
expect 2 "unknown command '--helpfoo'" "$LOCKSTEP" --helpfoo
expect 2 "unknown command 'base_train'; use \`lockstep train\`" "$LOCKSTEP" base_train --depth=20
expect 2 "unknown command 'tok_train'; use \`lockstep prepare\`" "$LOCKSTEP" tok_train
expect 2 "unknown command 'sample'; use \`lockstep generate\`" "$LOCKSTEP" sample --start x
expect 2 "unknown option --start; use --prompt TEXT" "$LOCKSTEP" generate --start x
expect 2 "unknown model 'd12'; use gpt2, which has 12 layers" "$LOCKSTEP" train --model d12 --train_data_path "$LOCKSTEP"
expect 2 "unknown benchmark '--helpx'" "$LOCKSTEP" bench --helpx
# a precision of train alone, and which one to use instead
for command in generate eval "bench gemm"; do
  expect 2 "--precision fp8: only train and verify compute in fp8; use --precision bf16, also for a model that was trained in fp8" "$LOCKSTEP" $command --precision fp8
done

# The reader is gone: the command ends without a message, by SIGPIPE (141).
gone() { # COMMAND...
  "$@" 2>"$SCRATCH/err" | :
  local code=${PIPESTATUS[0]}
  { [ "$code" = 141 ] || [ "$code" = 0 ]; } && [ ! -s "$SCRATCH/err" ] || bad "$*: exit code $code: $(cat "$SCRATCH/err")"
}
gone "$LOCKSTEP" train --help
gone "$LOCKSTEP" train --help_all
gone "$LOCKSTEP" --help
gone "$LOCKSTEP" plan --schedule 1f1b --pp 8 --micro 64
gone "$LOCKSTEP" data list
(trap '' PIPE; "$LOCKSTEP" train --help_all 2>"$SCRATCH/err" | :; [ "${PIPESTATUS[0]}" != 3 ]) || bad "with SIGPIPE ignored: $(cat "$SCRATCH/err")"
[ ! -w /dev/full ] || { "$LOCKSTEP" train --help >/dev/full 2>"$SCRATCH/err"; code=$?
  [ "$code" = 3 ] && grep -q "cannot write to stdout" "$SCRATCH/err"; } || bad "a full disk: exit code $code"

# printed commands are quoted for the shell
expect 3 "lockstep prepare TEXT --out 'my data'" "$LOCKSTEP" train --data "my data"
expect 2 "did you mean --max_steps" "$LOCKSTEP" train --setps 3
# HOME is not set: there is no cache of the vocabulary
echo text >"$SCRATCH/a.txt"
expect 3 "or --tokenizer train" env -u HOME -u XDG_CACHE_HOME -u LOCKSTEP_CACHE "$LOCKSTEP" prepare "$SCRATCH/a.txt" --out "$SCRATCH/d"
expect 3 "train a vocabulary on the text with --tokenizer train" env LOCKSTEP_CACHE="$SCRATCH/none" "$LOCKSTEP" prepare "$SCRATCH/a.txt" \
  --out "$SCRATCH/d" --vocab_url "file://$SCRATCH/none"

# a stack in which threads and libraries crash is refused before anything runs
expect 2 "the stack may have 64 KiB, and 1024 are needed; use ulimit -s 8192" bash -c 'ulimit -s 64; exec "$0" train --data d' "$LOCKSTEP"
done_tests
