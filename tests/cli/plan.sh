#!/usr/bin/env bash
# plan --schedule: the clock grid, theoretical numbers, JSON, SVG, export and import, and errors. plan --model: the ranking;
# --measure and --check: a file that is read back, planned bytes that equal the allocated ones.
. "$(dirname "$0")/../support/lib.sh"

plan() { "$LOCKSTEP" plan "$@"; }
# The output without line breaks in commands and sentences.
joined() { "$LOCKSTEP" plan "$@" | python3 -c 'import re, sys; t = sys.stdin.read().replace(" \\\n      ", " "); t = re.sub(r"(?m)^best: .*\n.*:\n +", "best: ", t); print(re.sub(r"(?<!:)\n  (?=\S)", " ", t), end="")'; }

plan --schedule 1f1b --pp 3 --micro 4 --costs 1,1 >"$SCRATCH/out" 2>"$SCRATCH/err" || bad "1f1b does not run: $(cat "$SCRATCH/err")"
cat >"$SCRATCH/expect" <<'X'
1f1b, 3 stages, 4 micro-batches: bubble 33.3 %

stage 0  F0 F1 F2 .. .. B0 F3 B1 .. B2 .. B3
stage 1  .. F0 F1 .. B0 F2 B1 F3 B2 .. B3 ..
stage 2  .. .. F0 B0 F1 B1 F2 B2 F3 B3 .. ..

stage      busy      idle   activations held
    0         8     33.3%   3
    1         8     33.3%   2
    2         8     33.3%   1

makespan 12, bubble 33.33 %; between each stage's first and last action 20.00 %
message buffers per link: 1 message
X
diff "$SCRATCH/expect" "$SCRATCH/out" || bad "the clock grid of 1f1b is wrong"
[ -s "$SCRATCH/err" ] && bad "stderr is not empty"

# every built-in schedule: JSON, an SVG that is XML with one box per computing action, text that is read back unchanged
for s in naive gpipe 1f1b interleaved zb; do
  plan --schedule $s --pp 4 --micro 8 --json --draw "$SCRATCH/$s.svg" --export "$SCRATCH/$s.txt" >"$SCRATCH/$s.json" || bad "$s"
  plan --schedule "$SCRATCH/$s.txt" --json --export "$SCRATCH/again.txt" >"$SCRATCH/again.json" || bad "$s: its export is refused"
  same "$SCRATCH/$s.txt" "$SCRATCH/again.txt"
  same "$SCRATCH/$s.json" "$SCRATCH/again.json"
done
python3 - "$SCRATCH" <<'P' || bad "JSON or SVG"
import json, sys, xml.etree.ElementTree as x
p, m, svg = 4, 8, "{http://www.w3.org/2000/svg}"
expect = {"naive": (p - 1) / p, "gpipe": (p - 1) / (m + p - 1), "1f1b": (p - 1) / (m + p - 1),
          "interleaved": (p - 1) / (2 * m + p - 1), "zb": (p - 1) / (3 * m + p - 1)}
peaks = {"naive": [1] * 4, "gpipe": [8] * 4, "1f1b": [4, 3, 2, 1], "interleaved": [11, 9, 7, 5], "zb": [4] * 4}
boxes = {"interleaved": 2 * 2 * p * m, "zb": 3 * p * m}
for name, bubble in expect.items():
    d = json.load(open(f"{sys.argv[1]}/{name}.json"))
    assert abs(d["bubble"] - bubble) < 1e-12, (name, d["bubble"], bubble)
    assert [r["peak_activations"] for r in d["ranks"]] == peaks[name], (name, d["ranks"])
    assert d["mailbox"] == 1 and d["stages"] == p and d["micro_batches"] == m, d
    root = x.parse(f"{sys.argv[1]}/{name}.svg").getroot()
    assert root.tag == svg + "svg"
    bars = [t for t in (g.findtext(svg + "title") for g in root.iter(svg + "g")) if t and not t.startswith("idle")]
    assert len(bars) == boxes.get(name, 2 * p * m), (name, len(bars))
    text = open(f"{sys.argv[1]}/{name}.svg").read()
    assert "prefers-color-scheme:dark" in text and f"bubble {100 * bubble:.1f} %" in text
P

# a schedule written by hand, with a comment and without messages; a model split into stages; the mesh
cat >"$SCRATCH/mine.txt" <<'X'
lockstep-schedule 1   # two stages, fill and drain
name mine
stages 2
micro 2
chunks 1
messages auto
rank 0
F0 F1 B0 B1
rank 1
F0 B0 F1 B1
X
expect 0 "mine, 2 stages, 2 micro-batches: bubble 33.3 %" plan --schedule "$SCRATCH/mine.txt"
expect 0 "stage 3: units 13-13, head, " plan --schedule 1f1b --pp 4 --micro 8 --model gpt2
expect 0 "stage 1: units 4-13, block 3 to head, " plan --schedule 1f1b --pp 2 --micro 8 --model gpt2 --stages 0-3,4-13
expect 0 "replica 1    8  9     10 11     12 13     14 15" plan --schedule gpipe --pp 4 --micro 2 --dp 2 --tp 2
expect 0 "between each stage's first and last action 0.00 %" plan --schedule zb --pp 4 --micro 8 --live 7
expect 0 "wider than" plan --schedule gpipe --pp 2 --micro 500

expect 2 "plan needs one of: --model NAME (rank layouts)" plan
expect 2 "did you mean gpipe?" plan --schedule gpip --pp 2 --micro 2
expect 2 "needs --pp P and --micro M" plan --schedule gpipe --pp 2
expect 2 "1f1b supports one chunk per stage (got 2)" plan --schedule 1f1b --pp 2 --micro 2 --interleave 2
expect 2 "12 blocks over pp=5 with interleaving 3: 5 x 3 = 15 parts" plan --schedule interleaved --pp 5 --micro 5 --interleave 3 --model gpt2
expect 2 "unit 4 is on no stage" plan --schedule 1f1b --pp 2 --micro 2 --model gpt2 --stages 0-3,5-13
expect 2 "is for 2 stages and 2 micro-batches, but this run has 3 and 2" plan --schedule "$SCRATCH/mine.txt" --pp 3
expect 2 "cannot parse 'x" plan --schedule gpipe --pp 2 --micro 2 --costs x=1
expect 2 "must be at least" plan --schedule gpipe --pp -2 --micro 2
sed "8s/.*/F0 B0 F1 B1/; 10s/.*/F0 F1 B0 B1/" "$SCRATCH/mine.txt" >"$SCRATCH/stuck.txt"
expect 2 "stuck.txt: schedule mine: deadlock: rank 0, line 8 (B0) waits for rank 1; rank 1, line 10 (F1) waits for rank 0" plan --schedule "$SCRATCH/stuck.txt"
sed 's/B1/B9/' "$SCRATCH/mine.txt" >"$SCRATCH/wrong.txt"
expect 3 "wrong.txt:8:10: micro-batches are 0 to 1; found 'B9'" plan --schedule "$SCRATCH/wrong.txt"
expect 3 "cannot create the folder /proc/no" plan --schedule gpipe --pp 2 --micro 2 --draw /proc/no/such/folder/x.svg

# layouts
expect 0 "best: lockstep train --data DIR --model gpt2 " joined --model gpt2 --global_batch 16 --cluster v100
expect 0 "tokens/s MFU % wait %" plan --model gpt2 --global_batch 16 --cluster v100 --top 3
expect 0 "do not fit; those that need least:" plan --model gpt2-xl --global_batch 64 --seq_length 1024 --cluster a100 --memory 16
expect 5 "no layout of 4 workers fits in memory; the smallest: needs .* 1.4 GiB available (614.4 MiB are reserved)" plan --model gpt2-xl --global_batch 64 --seq_length 1024 --cluster v100 --memory 2
expect 0 "the global batch of 6 sequences is not a multiple of 4" plan --model tiny --seq_length 64 --global_batch 6 --cluster v100
expect 0 "Rank 5 (zero2 dp 4, 8 x 2; its row with --all)" joined --model gpt2 --global_batch 64 --cluster v100 --top 1
expect 0 "not possible; reasons:" plan --model gpt2 --global_batch 16 --cluster h100
expect 2 "of all hosts together (2 hosts of 4: NAME:8)" plan --model gpt2 --cluster v100:2x4
expect 0 "5 heads over tp\|12 heads over tp 8" plan --model gpt2 --global_batch 16 --cluster h100
expect 2 "neither a file nor a preset (t4, l4, .* h200, .*); .* a file written by hand needs format, device (gpu), devices_per_host, memory_bytes, matmul_flops, memory_bandwidth" plan --model tiny --seq_length 64 --global_batch 6 --cluster v10
expect 2 "gpt2 has only 1024 positions" plan --model gpt2 --global_batch 8 --seq_length 2048 --cluster v100
expect 2 "must be at least" plan --model gpt2 --global_batch -8 --cluster v100
echo '{"format": "lockstep-cluster 1", "devices_per_host": 2}' >"$SCRATCH/bad.json"
expect 3 "bad.json: memory_bytes is missing" plan --model tiny --seq_length 64 --global_batch 8 --cluster "$SCRATCH/bad.json"
expect 3 "training_metrics.json" plan --check "$SCRATCH"
expect 0 "lockstep plan --check RUN_DIR" plan --help
expect 0 "usage: lockstep plan --schedule" plan --schedule 1f1b --help

# the command can be run as printed
expect 0 "best: lockstep train --data DIR --model gpt2 .* --device cuda .*-n 4 --strategy" joined --model gpt2 --global_batch 16 --cluster v100 --strategy ddp
expect 0 "best: lockstep launch --hosts A:4,B:4,C:4,D:4 -- train .*--device cuda --precision fp16 --dropout 0.25 --strategy zero2" joined --model tiny --seq_length 64 --global_batch 16 --cluster v100 --workers 16 --strategy zero2 --max_tp 1 --dropout 0.25
expect 0 "best: lockstep launch --hostfile HOSTS -n 128 -- train" joined --model tiny --seq_length 64 --global_batch 128 --cluster h100 --workers 128 --strategy ddp --max_tp 1
grep -q -- "  mpirun -np 128 --hostfile HOSTS lockstep train" "$SCRATCH/out" && grep -q -- "  srun --nodes 16 --ntasks 128 --ntasks-per-node 8 --mpi=pmix lockstep train" "$SCRATCH/out" || bad "mpirun and srun: $(cat "$SCRATCH/out")"

# the printed command, planned again, has the printed number; one host and two have three forms each; lines end at 80 columns
settings="--model gpt2 --seq_length 512 --global_batch 16 --cluster a100 --workers 2 --max_tp 1"
for o in "" "--no_deterministic --dropout 0" "--offload_optimizer cpu"; do
  plan $settings $o --json >"$SCRATCH/first.json" || bad "$o"
  python3 - "$SCRATCH/first.json" >"$SCRATCH/again" <<'P' || bad "commands of '$o'"
import json, re, sys
d = json.load(open(sys.argv[1]))
c = d["commands"][0]
assert len(d["commands"]) == 3 and d["layouts"][0]["command"] == c and d["layouts"][0]["frontier"], d["commands"]
print(*re.findall(r"--(?:no_deterministic|recompute|dropout \S+|offload_optimizer cpu|strategy \S+)", c))
P
  plan $settings $(cat "$SCRATCH/again") --json >"$SCRATCH/second.json" || bad "plan $(cat "$SCRATCH/again")"
  python3 - "$SCRATCH" <<'P' || bad "the number of '$o' is not that of '$(cat "$SCRATCH/again")'"
import json, sys
a, b = (json.load(open(f"{sys.argv[1]}/{n}.json"))["layouts"][0] for n in ("first", "second"))
assert a["tokens_per_sec"] == b["tokens_per_sec"] and a["memory"] == b["memory"]
P
done
plan --model gpt2 --global_batch 16 --cluster v100 --workers 8 --max_tp 1 >"$SCRATCH/out" || bad "two hosts"
for f in "lockstep launch --hosts A:4,B:4 -- train" "mpirun -np 8 -H A:4,B:4 lockstep train" "srun --nodes 2 --ntasks 8 --ntasks-per-node 4 --mpi=pmix lockstep train"; do
  grep -q -- "^  $f" "$SCRATCH/out" || bad "$f is missing: $(cat "$SCRATCH/out")"
done
python3 -c 'import sys; sys.exit(max(len(l.rstrip("\n")) for l in open(sys.argv[1], encoding="utf-8")) > 80)' "$SCRATCH/out" || bad "wider than 80 columns: $(cat "$SCRATCH/out")"

# nothing fits: what would is ranked, and does fit
expect 5 "mostly optimizer" plan --model gpt2-xl --cluster t4:4 --global_batch 16 --memory 9.5 --max_tp 1
grep -q "^  --recompute fits: " "$SCRATCH/out" || bad "advice: $(cat "$SCRATCH/out")"
for c in t4:1 v100:1; do # a larger model than one card of 16 GB has room for
  expect 5 "no layout of 1 worker fits in memory" plan --model gpt2-xl --cluster $c --global_batch 4 --seq_length 512
  grep -q "^  .* fits: " "$SCRATCH/out" || bad "$c, advice: $(cat "$SCRATCH/out")"
done
expect 0 "^best: " plan --model gpt2-xl --cluster t4:4 --global_batch 16 --memory 9.5 --max_tp 1 --recompute --top 1

# docs/PLAN.md has what plan prints for the published runs, within a quarter of them
python3 "$LS_SOURCE/perf/plan_published.py" --lockstep "$LOCKSTEP" >"$SCRATCH/published" || bad "perf/plan_published.py"
while IFS= read -r row; do grep -qxF -- "$row" "$LS_SOURCE/docs/PLAN.md" || bad "docs/PLAN.md lacks the line: $row"; done <"$SCRATCH/published"
[ "$(grep -cE '[|] [+-]?(1?[0-9]|2[0-5]) % [|]$' "$SCRATCH/published")" = 5 ] || bad "more than 25 % off: $(cat "$SCRATCH/published")"

# precisions, and the time of a whole training
expect 0 "16 sequences of 512 tokens" joined --model gpt2 --global_batch 16 --cluster h200
expect 0 "best: .*--precision fp16" joined --model gpt2 --global_batch 16 --cluster v100
grep -q -- "best: .*--device cuda --precision fp16 " "$SCRATCH/out" || bad "fp16 is missing in the command: $(grep best "$SCRATCH/out")"
expect 0 "best: .*--device cuda --precision fp32" joined --model gpt2 --global_batch 16 --cluster b200 --precision fp32 --workers 1
# a pipeline has no buckets: train refuses --bucket there, and the command is one that can be run
expect 0 "best: .*--strategy single --pp 2" joined --model tiny --seq_length 64 --global_batch 2 --cluster h200 --workers 2 --strategy single --max_tp 1 --bucket 5000
grep -q -- "--bucket" "$SCRATCH/out" && bad "--bucket for a pipeline: $(grep best "$SCRATCH/out")"
# dropout and one order of sums are priced, and the printed command is that of the number
expect 0 "Times include dropout and one order of sums" plan --model gpt2 --global_batch 16 --cluster h200 --workers 1
expect 0 "Times include one order of sums" joined --model gpt2 --global_batch 16 --cluster h200 --workers 1 --dropout 0
grep -q -- "best: .* --dropout 0\( \|$\)" "$SCRATCH/out" || bad "--dropout 0 is missing in the command: $(grep best "$SCRATCH/out")"
expect 0 "best: .*--no_deterministic --dropout 0" joined --model gpt2 --global_batch 16 --cluster h200 --workers 1 --dropout 0 --no_deterministic
grep -q "Times include" "$SCRATCH/out" && bad "a note about what the run does not have: $(grep rates "$SCRATCH/out")"
expect 0 "best: .*--device cuda --no_deterministic" joined --model gpt2 --global_batch 16 --cluster h200 --no_deterministic --workers 1
expect 2 "--precision bf16: the cards of cluster v100 (Volta, compute capability 7.0) have no bf16 products; use --precision fp16" plan --model gpt2 --global_batch 16 --cluster v100 --precision bf16
expect 2 "cluster t4 (Turing, compute capability 7.5) have no bf16 products" plan --model gpt2 --global_batch 16 --cluster t4 --precision bf16
expect 0 "^--precision auto: fp16, because Turing cards (compute capability 7.5) have no bf16" joined --model gpt2 --global_batch 16 --cluster t4 --precision auto
expect 0 "published PyTorch run on this card" joined --model gpt2 --global_batch 16 --cluster t4
expect 2 "--precision fp16: CPUs compute in fp32 and bf16" plan --measure --precision fp16
expect 2 "--precision fp8: cluster files have no times of fp8; plan with --precision bf16" plan --model gpt2 --global_batch 16 --cluster h200 --precision fp8
expect 0 "per step, bf16, 1 workers\\? of h200" plan --model gpt2 --global_batch 16 --cluster h200 --workers 1 --precision auto
expect 0 "best: .*--precision fp16" joined --model gpt2 --global_batch 16 --cluster v100 --precision auto
for p in bf16 fp8; do expect 2 "--precision is not for --check (the run records it); leave it out" plan --check "$SCRATCH" --precision $p; done
expect 2 "--device is only for --measure and --cluster this" plan --model gpt2 --global_batch 16 --cluster h200 --device cuda
expect 2 "'tpu': must be auto, cpu, cuda" plan --measure --device tpu
expect 2 "'tpu': must be auto, cpu, cuda" env LS_DEVICE=tpu "$LOCKSTEP" plan --measure --model tiny --seq_length 8
expect 2 "--tokens is not for --measure and --check" plan --measure --tokens 1e9
expect 2 "--tokens -1: must be 1 to 1e18" plan --model gpt2 --global_batch 16 --cluster h200 --tokens -1
expect 2 "--tokens 300X: not a number; write 300e9 or 300B" plan --model gpt2 --global_batch 16 --cluster h200 --tokens 300X
expect 2 "--tokens B: not a number" plan --model gpt2 --global_batch 16 --cluster h200 --tokens B
expect 0 "^3e+11 tokens: " plan --model gpt2 --global_batch 16 --cluster h200 --workers 1 --tokens 0.3t
expect 0 "^1e+10 tokens: [0-9.]* hours, [0-9.]* kWh (estimate: 1 x 700 W, the board power limit" joined --model gpt2 --global_batch 64 --seq_length 1024 --cluster h200 --workers 1 --tokens 10e9
grep -q "^MFU 4[0-9.]* % of 989.5 TFLOP/s per device (bf16, dense peak)" "$SCRATCH/out" || bad "MFU: $(tail -3 "$SCRATCH/out")"
for p in fp32 bf16; do plan --model gpt2 --global_batch 64 --seq_length 1024 --cluster h200 --workers 1 --tokens 10e9 --precision $p --json >"$SCRATCH/$p.json" || bad "$p"; done
python3 - "$SCRATCH" <<'PY' || bad "JSON of precisions"
import json, sys
wide, half = (json.load(open(f"{sys.argv[1]}/{p}.json")) for p in ("fp32", "bf16"))
assert (wide["precision"], half["precision"], half["tokens"], half["power_watts"]) == ("fp32", "bf16", 1e10, 700)
a, b = ({l["micro_batch"]: l for l in d["layouts"]}[64] for d in (wide, half))
assert b["tokens_per_sec"] > 5 * a["tokens_per_sec"] and 0.4 < b["mfu"] < 0.6
assert abs(b["hours"] * 3600 * b["tokens_per_sec"] / 1e10 - 1) < 1e-9 and abs(b["energy_kwh"] - 0.7 * b["hours"]) < 1e-9
m, n = a["memory"], b["memory"]
assert m["parameters"] == 2 * n["parameters"] and m["gradients"] == n["gradients"]       # fp32 gradients
assert n["optimizer"] * 2 == m["optimizer"] * 3 and 1.9 < m["activations"] / n["activations"] < 2.0  # and an fp32 master copy
PY

# thousands of GPUs: a default batch, failures, cost, and words; the whole text with one layout
TIMEFORMAT=%U # seconds of CPU: other tests run at the same time
{ time plan --model gpt2-xl --cluster h100:16384 --tokens 1T --mtbf 6300 --price 2.5 --json >"$SCRATCH/large.json" 2>"$SCRATCH/err"; } 2>"$SCRATCH/cpu"
[ "$(cut -d. -f1 "$SCRATCH/cpu")" -lt 30 ] || bad "16,384 GPUs took $(cat "$SCRATCH/cpu") s: $(cat "$SCRATCH/err")"
python3 - "$SCRATCH/large.json" <<'P' || bad "JSON of 16,384 GPUs"
import json, math, sys
d = json.load(open(sys.argv[1]))
best, f = d["layouts"][0], d["failures"]
assert (d["workers"], d["global_batch"]) == (16384, 16384) and d["fit"] > 15
assert best["dp"] * best["pp"] * best["tp"] == 16384 and all(l["strategy"] != "dp" for l in d["layouts"])
assert f["nodes"] == 2048 and abs(f["mtbf_hours"] * 2048 / 6300 - 1) < 1e-12
assert abs(f["goodput_simulated"] / f["goodput"] - 1) < 0.05 and 0.5 < f["goodput"] < 1
assert abs(f["interval_sec"] - f["interval_exact_sec"]) <= 1.01 * best["step_sec"]
assert abs(f["interval_young_sec"] - math.sqrt(2 * f["checkpoint_sec"] * f["mtbf_hours"] * 3600)) < 1e-6
assert abs(best["hours_expected"] * f["goodput"] / best["hours"] - 1) < 1e-9
assert abs(best["cost"] / (16384 * 2.5 * best["hours_expected"]) - 1) < 1e-9
assert abs(best["energy_kwh"] / (16384 * 0.7 * best["hours_expected"]) - 1) < 1e-9
assert abs(f["expected_failures"] * f["mtbf_hours"] / best["hours_expected"] - 1) < 1e-9
assert best["command"].endswith(f" --save_every {f['interval_steps']}")
assert "is the fastest of" in d["why"][0] and any(w.startswith("zero3: ") for w in d["why"]) and d["what_to_change"]
P
expect 0 "^--global_batch was not given: 512 sequences (3.28e+04 tokens) per step" joined --model tiny --seq_length 64 --cluster h100:8 --workers 4 --max_tp 1
expect 0 "is the fastest of [0-9]* layouts that fit: of its step of" joined --model gpt2 --cluster h100:16 --global_batch 64 --price 2 --top 1
grep -q "dp is not ranked on several hosts" "$SCRATCH/out" || bad "dp on two hosts: $(cat "$SCRATCH/out")"
grep -q "cost, in the currency of --price: 32.00 per hour, [0-9.]* per 1e9 tokens" "$SCRATCH/out" || bad "cost: $(cat "$SCRATCH/out")"
grep -Eq "  ?(ddp|zero3): at best .* (slower|the time) \(.* per step\): (forward|exposed|waiting|the update)" "$SCRATCH/out" || bad "no comparison: $(cat "$SCRATCH/out")"
expect 5 "no layout of 8 workers fits in memory" plan --model gpt2-xl --cluster h100:8 --memory 6 --global_batch 64 --strategy zero3 --max_tp 1
grep -q "^  --cluster h100:16 --global_batch 64 fits: " "$SCRATCH/out" || bad "no advice: $(cat "$SCRATCH/out")"
expect 2 "the number of devices after ':' must be 1 to 16384" plan --model gpt2 --cluster h100:20000
expect 2 "neither a file nor a preset" plan --model gpt2 --cluster h999:8
expect 2 "--workers 16: --cluster h100:8 has 8 devices" plan --model gpt2 --cluster h100:8 --workers 16
expect 0 "the run does not progress: a failure comes once in 0.0036 s" joined --model gpt2 --cluster h100:8 --strategy ddp --max_tp 1 --mtbf 1e-6 --tokens 1B --price 2 --top 1
grep -Ew "inf|nan|cost|hours with failures" "$SCRATCH/out" && bad "numbers of a run that does not progress"
plan --model gpt2 --cluster h100:8 --strategy ddp --max_tp 1 --mtbf 1e-6 --tokens 1B --price 2 --top 1 --json | python3 -c '
import json, sys
d = json.load(sys.stdin)
best, f = d["layouts"][0], d["failures"]
assert best["hours"] > 0 and f["goodput"] < 1e-4
assert all(v is None for v in (best["hours_expected"], best["cost"], best["energy_kwh"], f["expected_failures"], f["lost_hours"])), d
' || bad "JSON of a run that does not progress"
expect 2 "need --mtbf HOURS" plan --model gpt2 --cluster h100 --restart_time 60
expect 2 "--mtbf -1: must be 0 to" plan --model gpt2 --cluster h100 --mtbf -1
expect 2 "--price 0: must be above 0" plan --model gpt2 --cluster h100 --price 0
expect 2 "--mtbf is not for --measure and --check" plan --measure --mtbf 100

# an impossible request states the reason; an unused option is refused
expect 2 "no layout of 1 worker is possible: dp 1: 2053 sequences per replica are not a product micro-batch x accumulation" plan --model tiny --seq_length 64 --global_batch 2053 --cluster v100 --workers 1
expect 2 "no layout of 1 worker is possible: dp 1: strategy ddp needs at least 2 replicas" plan --model tiny --seq_length 64 --global_batch 8 --cluster v100 --workers 1 --strategy ddp
before=$SECONDS
expect 2 "--offload_optimizer cpu needs GPUs" plan --model tiny --seq_length 64 --global_batch 8 --cluster this --device cpu --offload_optimizer cpu --seconds 60
[ $((SECONDS - before)) -lt 20 ] || bad "--offload_optimizer cpu is refused after the measurement"
expect 2 "needs zero1, zero2, zero3 or single; got --strategy ddp" plan --model tiny --seq_length 64 --global_batch 8 --cluster h200 --workers 2 --offload_optimizer cpu --strategy ddp
expect 2 "--out is only for --measure" plan --model tiny --seq_length 64 --global_batch 8 --cluster v100 --out "$SCRATCH/never"
[ -e "$SCRATCH/never" ] && bad "--out wrote"
expect 2 "--micro is only for --measure and --cluster this" plan --model tiny --seq_length 64 --global_batch 8 --cluster v100 --micro 2
expect 2 "--workers is not for --measure and --check" plan --measure --model tiny --seq_length 64 --workers 2
expect 2 "--vocab_size is not for --check" plan --check "$SCRATCH" --vocab_size 300
expect 2 "--memory 1e-12: must be at least one byte" plan --model tiny --seq_length 64 --global_batch 8 --cluster v100 --memory 1e-12
expect 2 "--dropout -0.5: must be 0 to 1" plan --model tiny --seq_length 64 --global_batch 8 --cluster v100 --dropout -0.5

# clusters: a number of places that overflows, hosts without a link, more workers than cores
cluster() { echo "{\"format\": \"lockstep-cluster 1\", \"memory_bytes\": 1e12, \"matmul_flops\": 1e11, \"memory_bandwidth\": 1e10, $1}" >"$SCRATCH/made.json"; }
tiny="--model tiny --seq_length 64 --global_batch 8 --cluster $SCRATCH/made.json"
for n in 65536 50000; do
  cluster "\"hosts\": $n, \"devices_per_host\": $n"
  expect 2 "devices, but at most 16384 workers can be planned; add --workers N" plan $tiny
done
cluster '"devices_per_host": 2147483647'
expect 3 "made.json: devices_per_host is 2.14748e+09; it must be at most 65536" plan $tiny
cluster '"device": "gpu", "devices_per_host": 2, "link_inside_host": {"latency": 1e-5, "bandwidth": 1e9}'
expect 3 "8 workers need 4 hosts of 2; set link_between_hosts.bandwidth, which is missing" plan $tiny --workers 8
cluster '"device": "cpu", "devices_per_host": 2'
expect 3 "or set link_inside_host.bandwidth" plan $tiny --workers 2
cluster '"device": "cpu", "devices_per_host": 2, "link_inside_host": {"latency": 1e-5, "bandwidth": 1e9}'
expect 0 "8 workers share 2 cores per host: the cores are oversubscribed" plan $tiny --workers 8
for n in 2 8; do plan $tiny --workers $n --json >"$SCRATCH/on-$n.json" || bad "$n workers"; done
python3 - "$SCRATCH" <<'P' || bad "workers that share cores"
import json, sys
two, eight = (json.load(open(f"{sys.argv[1]}/on-{n}.json")) for n in (2, 8))
assert eight["workers_per_core"] == 4 and two["workers_per_core"] == 1
assert eight["layouts"][0]["tokens_per_sec"] < 1.1 * two["layouts"][0]["tokens_per_sec"]
assert all(l["memory"]["host"] == 8 * l["memory"]["planned"] for l in eight["layouts"])
P
cluster '"device": "cpu", "devices_per_host": 2, "overlap": 5'
expect 3 "made.json: overlap is above 1; it is a fraction" plan $tiny --workers 2

plan --model gpt2 --global_batch 16 --cluster v100 --json --all >"$SCRATCH/all.json" || bad "--json"
python3 - "$SCRATCH/all.json" <<'P' || bad "JSON of the ranking"
import json, sys
d = json.load(open(sys.argv[1]))
fit = [l for l in d["layouts"] if l["fits"]]
assert len(fit) == d["fit"] and len(d["layouts"]) == d["fit"] + d["do_not_fit"]
assert all(a["tokens_per_sec"] >= b["tokens_per_sec"] for a, b in zip(fit, fit[1:]))
assert {l["strategy"] for l in d["layouts"]} == {"single", "dp", "ddp", "zero1", "zero2", "zero3"}
assert {l["schedule"] for l in d["layouts"]} == {None, "naive", "gpipe", "1f1b", "interleaved", "zb"}
assert {l["tp"] for l in d["layouts"]} == {1, 2, 4}
for l in d["layouts"]:
    assert l["dp"] * l["pp"] * l["tp"] == 4 and l["dp"] * l["micro_batch"] * l["grad_accum"] == 16
    parts = sum(l[k + "_sec"] for k in ("forward", "backward", "exposed_comm", "optimizer", "other"))
    assert abs(parts / l["step_sec"] - 1) < 1e-6, l
    assert (l["bubble"] > 0) == (l["pp"] > 1), l
P

# a machine measured in one second; runs that allocate the planned bytes
tokens "$SCRATCH/train.bin" 20000
"$LOCKSTEP" plan --measure --model tiny --seq_length 32 --seconds 100 --out "$SCRATCH/never.json" >"$SCRATCH/measure" 2>&1 &
pid=$!
await $pid grep -q "measuring 1 worker" "$SCRATCH/measure" || bad "--measure: $(cat "$SCRATCH/measure")"
kill -TERM $pid
wait $pid; code=$?
[ $code = 143 ] && [ ! -e "$SCRATCH/never.json" ] || bad "--measure, asked to stop: $code, $(cat "$SCRATCH/measure")"
expect 0 "cluster.json: measured" plan --measure --model tiny --seq_length 32 --micro 1 2 --measure_workers 1 2 --seconds 1 --out "$SCRATCH/cluster.json"
for f in "-n 1 --threads 1" "-n 2 --strategy zero2" "-n 2 --pp 2 --schedule zb" "-n 2 --tp 2" "-n 2 --pp 2 --stages measured" "-n 2 --strategy ddp --share_optimizer"; do
  "$LOCKSTEP" train --train_data_path "$SCRATCH/train.bin" --model tiny --seq_length 32 --micro_batch_size_per_gpu 2 --grad_accum_steps 2 \
    --max_steps 4 --checkpoint_path "$SCRATCH/run" $f >/dev/null 2>"$SCRATCH/err" || bad "train $f: $(tail -2 "$SCRATCH/err")"
  expect 0 "tokens/s" plan --check "$SCRATCH/run" --cluster "$SCRATCH/cluster.json"
  grep -q "rank 0 *total *[0-9]* *[0-9]*  equal" "$SCRATCH/out" || bad "$f: planned is not allocated: $(cat "$SCRATCH/out")"
  grep -q "NOT EQUAL" "$SCRATCH/out" && bad "$f: planned is not allocated: $(cat "$SCRATCH/out")"
done

# bf16: the sizes are those of the matmul kernel of the cluster and of the run, whatever this CPU has; a run that was continued with --resume RUN alone; the
# precision is the recorded one
amx() { env LS_GEMM=amx-bf16-emulated "$@"; }
amx "$LOCKSTEP" train --train_data_path "$SCRATCH/train.bin" --model tiny --num_layers 1 --seq_length 32 --micro_batch_size_per_gpu 2 --grad_accum_steps 2 --device cpu --precision bf16 \
  --max_steps 1 --checkpoint_path "$SCRATCH/run16" >/dev/null 2>"$SCRATCH/err" || bad "train in bf16: $(tail -2 "$SCRATCH/err")"
expect 0 "bf16.json: measured .* amx-bf16-emulated matmul" amx "$LOCKSTEP" plan --measure --device cpu --precision bf16 --model "$SCRATCH/run16/epoch-1/config.json" --seq_length 32 --micro 2 \
  --measure_workers 1 --seconds 0.1 --out "$SCRATCH/bf16.json"
equal_check() { # WHEN
  expect 0 "tokens/s" plan --check "$SCRATCH/run16" --cluster "$SCRATCH/bf16.json"
  grep -q "rank 0 *total *[0-9]* *[0-9]*  equal" "$SCRATCH/out" && ! grep -q "NOT EQUAL" "$SCRATCH/out" || bad "$1: planned is not allocated: $(cat "$SCRATCH/out")"
}
equal_check "a kernel that is not that of this CPU"
plan --model "$SCRATCH/run16/epoch-1/config.json" --seq_length 32 --global_batch 4 --workers 1 --cluster "$SCRATCH/bf16.json" --json >"$SCRATCH/rank16.json" || bad "ranking in bf16"
python3 - "$SCRATCH/rank16.json" "$SCRATCH/run16/training_metrics.json" <<'P' || bad "the ranking does not have the sizes of the kernel of the cluster"
import json, sys
plan, run = (json.load(open(f)) for f in sys.argv[1:])
a = {l["micro_batch"]: l["memory"]["planned"] for l in plan["layouts"]}[2]
b = run["lockstep"]["memory"]["per_rank"][0]["planned"]
assert a == b, (a, b)
P
# without --precision: the only one that was measured, in a line of its own, the printed command and the JSON
fallback() { joined --model tiny --seq_length 32 --global_batch 4 --workers 1 --cluster "$SCRATCH/bf16.json" "$@"; }
expect 0 "^--precision was not given: bf16, because this cluster has no times in fp32, the default of train$" fallback
grep -q "^best: lockstep train .* --precision bf16" "$SCRATCH/out" || bad "bf16 is missing in the command: $(grep ^best "$SCRATCH/out")"
expect 0 "^--precision auto: bf16, because this cluster has no times in fp32, the choice of train$" fallback --precision auto
expect 0 '"precision": "bf16"' fallback --json
expect 0 "^best: lockstep train .* --device cpu --precision bf16" fallback --precision bf16
grep -q "was not given: bf16" "$SCRATCH/out" && bad "--precision was given: $(cat "$SCRATCH/out")"
expect 2 "--precision fp32: cluster .* has no times for it (it has: bf16); measure it (plan --measure --device cpu --precision fp32)" \
  plan --model tiny --seq_length 32 --global_batch 4 --workers 1 --cluster "$SCRATCH/bf16.json" --precision fp32
expect 2 "--precision fp16: cluster .* has CPUs, which compute in fp32 and bf16 (its file has times in: bf16)" \
  plan --model tiny --seq_length 32 --global_batch 4 --workers 1 --cluster "$SCRATCH/bf16.json" --precision fp16
amx "$LOCKSTEP" train --resume "$SCRATCH/run16" --max_steps 2 >/dev/null 2>"$SCRATCH/err" || bad "train --resume: $(tail -2 "$SCRATCH/err")"
equal_check "a run continued with --resume RUN"
sed -i 's/"precision": "bf16"/"precision": "fp32"/' "$SCRATCH/run16/options.json"
equal_check "the precision of the record"
sed -i 's/amx-bf16-emulated matmul/bfmmla matmul/' "$SCRATCH/run16/training_metrics.json"
expect 0 "numbers differ: the run has \"cpu: .*bfmmla matmul.*\", this plan the sizes of bfmmla[-emulated]* matmul with [0-9]* threads* per worker; if these are the same, the run used another build" \
  plan --check "$SCRATCH/run16" --cluster "$SCRATCH/bf16.json"
cp "$SCRATCH/run16/options.json" "$SCRATCH/options.json"
sed -i 's/"seq_length": 32/"seq_length": "abc"/' "$SCRATCH/run16/options.json"
expect 3 "run16/options.json: .*abc.*; the file is damaged: give train the options of the run and its --precision, with --checkpoint_path $SCRATCH/run16 --resume$" \
  plan --check "$SCRATCH/run16" --cluster "$SCRATCH/bf16.json"
head -c 40 "$SCRATCH/options.json" >"$SCRATCH/run16/options.json"
expect 3 "run16/options.json.*; the file is damaged: give train the options" plan --check "$SCRATCH/run16" --cluster "$SCRATCH/bf16.json"
rm "$SCRATCH/run16/options.json"
expect 3 "options.json does not exist: the run is of an older version" plan --check "$SCRATCH/run16" --cluster "$SCRATCH/bf16.json"

# an emulated GPU: measured, and 16-bit runs that allocate the planned bytes
emu=${LS_BUILD:-$LS_SOURCE/build}/emu
if [ -f "$emu/lockstep_cuda.so" ]; then
  gpu() { env LS_PLUGIN_DIR="$emu" LS_GEMM_TUNE=0 XDG_CACHE_HOME="$SCRATCH/cache" "$@"; }
  expect 2 "plan --measure, worker 0: no CUDA device" gpu env LS_EMU_DEVICES=0 "$LOCKSTEP" plan --measure --device cuda --model tiny --seq_length 8
  for f in "--precision bf16 --grad_accum_steps 2" "-n 2 --precision fp16 --strategy ddp"; do
    gpu "$LOCKSTEP" train --train_data_path "$SCRATCH/train.bin" --model tiny --num_layers 2 --num_heads 2 --embedding_size 32 --seq_length 8 --micro_batch_size_per_gpu 1 --max_steps 2 \
      --device cuda --checkpoint_path "$SCRATCH/gpu run" $f >/dev/null 2>"$SCRATCH/err" || bad "train --device cuda $f: $(tail -2 "$SCRATCH/err")"
    for where in gpu env; do # with the device, and on a machine without one
      expect 0 "tokens/s" $where "$LOCKSTEP" plan --check "$SCRATCH/gpu run" --cluster h200
      grep -q "rank 0 *total *[0-9]* *[0-9]*  equal" "$SCRATCH/out" && ! grep -q "NOT EQUAL" "$SCRATCH/out" || bad "$f: planned is not allocated: $(cat "$SCRATCH/out")"
    done
  done
  small="$SCRATCH/gpu run/epoch-1/config.json"
  expect 0 "gpu.json: measured .* 1 x emulated device, bf16, cuda: emulated device" gpu "$LOCKSTEP" plan --measure --device cuda --model "$small" --seq_length 8 --micro 1 --measure_workers 1 --seconds 0.1 --out "$SCRATCH/gpu.json"
  expect 0 "1e+06 tokens: [0-9.e+]* hours; energy unknown: cluster .* has no power_watts" plan --model "$small" --seq_length 8 --global_batch 1 --cluster "$SCRATCH/gpu.json" --tokens 1e6
  expect 0 '"working_space_by": "this machine.s GPU"' gpu "$LOCKSTEP" plan --model "$small" --seq_length 8 --global_batch 1 --cluster "$SCRATCH/gpu.json" --json
  expect 0 '"working_space_by": "formulas, without cuDNN"' gpu "$LOCKSTEP" plan --model "$small" --seq_length 8 --global_batch 1 --workers 1 --cluster h200 --json
  expect 2 "--precision fp32: cluster .* has no times for it (it has: bf16)" plan --model "$small" --seq_length 8 --global_batch 1 --cluster "$SCRATCH/gpu.json" --precision fp32
fi

# the run uses the vocabulary and the val.bin of the data: the best command, run as printed, allocates what was planned
mkdir -p "$SCRATCH/my data"
python3 -c "print(' '.join(f'word{i * 7919 % 3000} of {i}' for i in range(6000)))" >"$SCRATCH/text.txt"
"$LOCKSTEP" prepare --input "$SCRATCH/text.txt" --out "$SCRATCH/my data" --tokenizer train --vocab_size 700 --val_fraction 0.3 >/dev/null 2>"$SCRATCH/err" ||
  bad "prepare: $(cat "$SCRATCH/err")"
expect 0 "tiny (n_layer=4, n_head=4, n_embd=128, vocabulary 257)" plan --model tiny --seq_length 32 --global_batch 4 --cluster "$SCRATCH/cluster.json" --workers 1
expect 0 "tiny (n_layer=4, n_head=4, n_embd=128, vocabulary 300)" joined --model tiny --seq_length 32 --global_batch 4 --cluster "$SCRATCH/cluster.json" --workers 1 --vocab_size 300
grep -q -- "best: .*--vocab_size 300" "$SCRATCH/out" || bad "--vocab_size is missing: $(grep best "$SCRATCH/out")"
expect 0 "vocabulary 700)" plan --model tiny --seq_length 32 --global_batch 4 --cluster "$SCRATCH/cluster.json" --workers 1 --data "$SCRATCH/my data"
expect 2 "the tokenizer of the data has 700 tokens, but the vocabulary of the model 300; use --vocab_size 700" plan --model tiny --seq_length 32 --global_batch 4 --cluster "$SCRATCH/cluster.json" --workers 1 --data "$SCRATCH/my data" --vocab_size 300
expect 3 "has no train.bin" plan --model tiny --seq_length 32 --global_batch 4 --cluster "$SCRATCH/cluster.json" --workers 1 --data "$SCRATCH"/run
plan --model tiny --seq_length 32 --global_batch 4 --cluster "$SCRATCH/cluster.json" --workers 2 --strategy ddp --data "$SCRATCH/my data" --json >"$SCRATCH/with.json" || bad "--data --json"
best=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["layouts"][0]["command"])' "$SCRATCH/with.json")
[[ $best == *" --device cpu "* ]] || bad "--device cpu is missing in the command: $best"
eval "\"\$LOCKSTEP\" ${best#lockstep } --max_steps 8 --checkpoint_path \"\$SCRATCH/a run\"" >/dev/null 2>"$SCRATCH/err" || bad "$best: $(tail -2 "$SCRATCH/err")"
python3 - "$SCRATCH/with.json" "$SCRATCH/a run/training_metrics.json" <<'P' || bad "$best: planned is not allocated"
import json, sys
plan, run = (json.load(open(f)) for f in sys.argv[1:])
a, b = plan["layouts"][0]["memory"]["planned"], max(r["planned"] for r in run["lockstep"]["memory"]["per_rank"])
assert a == b, (a, b)
P

# --check: paths with blanks, and lines that are no steps
expect 0 "tokens/s" plan --check "$SCRATCH/a run" --cluster "$SCRATCH/cluster.json"
grep -q "NOT EQUAL" "$SCRATCH/out" && bad "planned is not allocated: $(cat "$SCRATCH/out")"
cp "$SCRATCH/a run/metrics.jsonl" "$SCRATCH/steps"
sed -E 's/"forward_sec": *[-+.0-9e]+/"forward_sec": null/' "$SCRATCH/steps" >"$SCRATCH/a run/metrics.jsonl"
expect 0 "forward .* unknown" plan --check "$SCRATCH/a run" --cluster "$SCRATCH/cluster.json"
sed '3s/.*/{junk/' "$SCRATCH/steps" >"$SCRATCH/a run/metrics.jsonl"
expect 3 "metrics.jsonl:3: the line is not JSON" plan --check "$SCRATCH/a run" --cluster "$SCRATCH/cluster.json"
sed -E '4s/"step_time_sec": *[-+.0-9e]+/"step_time_sec": 0/' "$SCRATCH/steps" >"$SCRATCH/a run/metrics.jsonl"
expect 3 "metrics.jsonl:4: step_time_sec is 0; it must be above 0" plan --check "$SCRATCH/a run" --cluster "$SCRATCH/cluster.json"
done_tests
