#!/usr/bin/env bash
# bench ab: each run counts for its own side, also with different numbers of workers, unequal numbers of runs and broken files.
# ls-test: serial
. "$(dirname "$0")/../support/lib.sh"
cd "$SCRATCH" || exit 1
mkdir -p d && tokens d/train.bin 6000 && tokens d/val.bin 500 2
bench() { timeout 300 "$LOCKSTEP" bench "$@"; }
train=(--data d --model tiny --num_layers 1 --seq_length 16 --micro_batch_size_per_gpu 1)

# check A B PAIRS REPORT: the sides of the report are these folders, pair by pair, with the speeds of the steps in the folders
cat >check.py <<'PY'
import json, pathlib, sys
a, b, pairs, report = sys.argv[1:]
r = json.load(open(report))
for key, folder in (("a", a), ("b", b)):
    want = [f"{folder}/run_{i}" for i in pairs.split(",")]
    assert r[key]["runs"] == want, (key, r[key]["runs"], want)
    for run, rate in zip(want, r[key]["tokens_per_sec_repeats"]):
        steps = [json.loads(l) for l in open(pathlib.Path(run) / "metrics.jsonl")][2:]
        own = sum(s["tokens"] for s in steps) / sum(s["step_time_sec"] for s in steps)
        assert abs(own / rate - 1) < 1e-9, (run, own, rate)
assert r["difference"]["pairs"] == len(pairs.split(","))
PY

# --- sides with different numbers of workers: the folder name has the number ---
bench ab -n 2 --repeat 4 --steps 6 --warmup 2 --out o --a "" --b "-n 1 --grad_accum_steps 2" -- "${train[@]}" >out 2>err || bad "ab: $(cat err)"
python3 check.py o/2cpu_a o/1cpu_b 1,2,3,4 o/ab_report.json || bad "two workers compared with one: the sides have wrong runs"
grep -q "^A .*(the common options)$" out && grep -q "^B .*  -n 1 --grad_accum_steps 2$" out || bad "the sides are not named by their options: $(cat out)"
grep -q nan out && bad "nan in the table: $(cat out)"
expect 0 "Verification passed." "$LOCKSTEP" report verify --dir o
for flags in "--checkpoint_path x" --resume --json --print_config; do
  expect 2 "is not allowed in the train options of a benchmark" bench ab --dry_run --a "" --b "$flags" -- "${train[@]}"
done
expect 2 "must be one number" bench ab -n 1,2 --dry_run --a "" --b "" -- "${train[@]}"

# --- folders: both orders, unequal numbers, a truncated file ---
ab_json() { bench ab --warmup 2 --json "$@" >json 2>err; }
ab_json o/2cpu_a o/1cpu_b && python3 check.py o/2cpu_a o/1cpu_b 1,2,3,4 json || bad "folders of 2 and 1 workers: $(cat err)"
ab_json o/1cpu_b o/2cpu_a && python3 check.py o/1cpu_b o/2cpu_a 1,2,3,4 json || bad "folders of 1 and 2 workers: $(cat err)"
expect 0 "^A .*  o/2cpu_a$" bench ab --warmup 2 o/2cpu_a o/1cpu_b
expect 0 "^B .*  o/1cpu_b$" bench ab --warmup 2 o/2cpu_a o/1cpu_b
cp -r o/1cpu_b few && rm -r few/run_1 few/run_3
ab_json o/2cpu_a few && python3 check.py o/2cpu_a few 2,4 json || bad "4 runs compared with 2: $(cat err)"
grep -q "skipped: o/2cpu_a/run_3: the other side has no run to pair it with" err || bad "a skipped run is not reported: $(cat err)"
grep -q '"o/2cpu_a/run_1: the other side' json || bad "a skipped run is not in the report: $(cat json)"
cp -r o/1cpu_b cut && head -c 400 o/1cpu_b/run_2/training_metrics.json >cut/run_2/training_metrics.json
ab_json o/2cpu_a cut && python3 check.py o/2cpu_a cut 1,3,4 json || bad "a truncated file: $(cat err)"
grep -q "note: cut/run_2/training_metrics.json: line" err || bad "the truncated file is not named: $(cat err)"
grep -q "skipped: o/2cpu_a/run_2: its partner is left out" err || bad "the partner of the truncated file: $(cat err)"
mkdir other && cp -r o/1cpu_b/run_1 other/first && cp -r o/1cpu_b/run_2 other/second # no common names: paired by order
ab_json o/2cpu_a other || bad "no names in common: $(cat err)"
grep -q '"pairs": 2' json || bad "no names in common: $(cat json)"
rm -r few/run_4 && head -c 400 o/1cpu_b/run_2/training_metrics.json >few/run_2/training_metrics.json
expect 3 "no pair of runs to compare" bench ab --warmup 2 o/2cpu_a few
expect 3 "nowhere: no run to compare" bench ab nowhere o/1cpu_b
expect 3 "no step is left after the warm-up" bench ab --warmup 6 o/2cpu_a o/1cpu_b
expect 2 "needs two folders" bench ab o/2cpu_a
expect 2 "without --a, --b and train options" bench ab o/2cpu_a o/1cpu_b --a ""
done_tests
