#!/usr/bin/env bash
# Random bit flips in the parameters, moments, gradients, sums of gradients and activations of one rank, with and without --audit: a table of what is found.
# ls-test: long
# All flips that change a weight must be found by `--audit 1 --audit_depth step` before the update, and blamed on the right rank. FLIPS: how
# many [12; 1000 with LS_TEST_ALL=1]; SEED; EVERY: also print, for comparison, what `--audit EVERY` (one micro-batch) finds.
. "$(dirname "$0")/../support/lib.sh"
d=$SCRATCH/d
mkdir -p "$d" && tokens "$d/train.bin" 3000
flips=${FLIPS:-12}; [ "${LS_TEST_ALL:-0}" = 1 ] && flips=${FLIPS:-1000}
python3 - "$LOCKSTEP" "$SCRATCH" "$flips" "${SEED:-1}" "${EVERY:-0}" <<'PY' || bad "the campaign"
import concurrent.futures, json, os, random, shutil, subprocess, sys

program, scratch, flips, seed, every = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
STEPS = max(3, every + 1)
base = ["train", "--data", f"{scratch}/d", "--model", "tiny", "--num_layers", "2", "--num_heads", "2", "--embedding_size", "32", "--seq_length", "16",
        "--micro_batch_size_per_gpu", "1", "--global_batch_size", "4", "--max_val_steps", "0", "--max_steps", str(STEPS), "--lr", "1e-3", "--threads", "1"]
everywhere = [0, 1, 2, 3]
# name, options, ranks, units of each rank
layouts = [("ddp", ["-n", "4", "--strategy", "ddp"], 4, lambda r: everywhere), ("ddp of 2", ["-n", "2", "--strategy", "ddp"], 2, lambda r: everywhere),
           ("zero1", ["-n", "4", "--strategy", "zero1"], 4, lambda r: everywhere), ("zero2", ["-n", "2", "--strategy", "zero2"], 2, lambda r: everywhere),
           ("zero3", ["-n", "4", "--strategy", "zero3"], 4, lambda r: everywhere), ("pp", ["-n", "2", "--pp", "2"], 2, lambda r: everywhere[2 * r:2 * r + 2]),
           ("pp x ddp", ["-n", "4", "--pp", "2"], 4, lambda r: everywhere[2 * (r % 2):2 * (r % 2) + 2]), ("tp", ["-n", "2", "--tp", "2"], 2, lambda r: everywhere)]

def train(name, options, fault=None):
    folder = f"{scratch}/{name}"
    env = dict(os.environ, **({"LOCKSTEP_FAULT": fault} if fault else {}))
    code = subprocess.run(["timeout", "-k", "5", "120", program, *base, *options, "--checkpoint_path", folder], env=env,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
    state = tuple(open(p, "rb").read() if os.path.exists(p := f"{folder}/epoch-1/{f}") else b"" for f in ("model.safetensors", "optimizer.safetensors"))
    path = f"{folder}/events.jsonl"
    events = [json.loads(line) for line in open(path)] if os.path.exists(path) else []
    shutil.rmtree(folder, ignore_errors=True)
    return code, state, [e for e in events if e["event"] == "audit" and e["result"] == "mismatch"]

clean = {}
for i, (name, options, *_) in enumerate(layouts):
    code, clean[name], _ = train(f"clean-{i}", options)
    assert code == 0, name

def micro(options): # micro-batches of a worker and step
    inner = 2 if {"--pp", "--tp"} & set(options) else 1
    return 4 * inner // int(options[1])

def one(i):
    r = random.Random(1000003 * seed + i)
    name, options, ranks, units = r.choice(layouts)
    tensor = r.choice(["param", "moment", "grad", "sum", "act"])
    rank = r.randrange(ranks)
    unit = r.choice([u for u in units(rank) if u or tensor != "act"])
    step = r.randint(1, min(STEPS, every) if every else STEPS - 1)
    phase = ",phase=backward" if tensor == "sum" and micro(options) > 1 and r.random() < 0.5 else "" # the sum of the first micro-batches
    fault = f"kind=flip,tensor={tensor}{phase},rank={rank},step={step},unit={unit},element={r.randrange(1 << 20)},bit={r.randrange(32)}"
    code, state, _ = train(f"{i}-plain", options, fault)
    changed = code != 0 or state[0] != clean[name][0]
    result = []
    for k, depth in [(1, "step")] + ([(every, "micro")] if every else []):
        code, state, found = train(f"{i}-audit", [*options, "--audit", str(k), "--audit_depth", depth], fault)
        if found:
            assert code == 4, (fault, options, code)
            at = found[0]["step"]
            assert step <= at < step + k, (fault, options, at)
            result.append("right" if found[0]["rank"] == rank else "nobody" if found[0]["rank"] is None else "WRONG")
        else:
            result.append("missed")
        if result[-1] in ("WRONG", "missed") and k == 1 and (changed or result[-1] == "WRONG"):
            print("not right:", options, fault, found)
    return name, tensor, changed, result

with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    rows = list(pool.map(one, range(flips)))
bad = 0
for column, title in enumerate(["--audit 1 --audit_depth step"] + ([f"--audit {every}"] if every else [])):
    print(f"\n{title}\n{'flip in':<10}{'flips':>7}{'change a weight':>17}{'of them found':>15}{'right rank':>12}{'nobody':>8}{'wrong':>7}{'found harmless':>16}")
    for tensor in ["param", "moment", "grad", "sum", "act", None]:
        mine = [(changed, result[column]) for _, x, changed, result in rows if tensor in (x, None)]
        real = [x for changed, x in mine if changed]
        n = {w: real.count(w) for w in ("right", "nobody", "WRONG", "missed")}
        wrong = sum(x == "WRONG" for _, x in mine)
        harmless = sum(not changed and x != "missed" for changed, x in mine)
        print(f"{tensor or 'all':<10}{len(mine):>7}{len(real):>17}{len(real) - n['missed']:>15}{n['right']:>12}{n['nobody']:>8}{wrong:>7}{harmless:>16}")
        if column == 0 and tensor is None:
            bad = n["missed"] + n["nobody"] + wrong
    print(f"\nfound, of those that change a weight{'':<2}" + "".join(f"{x:>12}" for x in ("param", "moment", "grad", "sum", "act")))
    for name, *_ in layouts:
        cells = []
        for tensor in ("param", "moment", "grad", "sum", "act"):
            real = [result[column] for n, x, changed, result in rows if (n, x) == (name, tensor) and changed]
            cells.append(f"{sum(x != 'missed' for x in real)} of {len(real)}")
        print(f"{name:<37}" + "".join(f"{x:>12}" for x in cells))
    blamed = {name: sum(x[3][column] == "nobody" for x in rows if x[0] == name) for name, *_ in layouts}
    print("nobody blamed, by layout:", ", ".join(f"{k} {v}" for k, v in blamed.items() if v) or "none")
sys.exit(bad != 0)
PY
done_tests
