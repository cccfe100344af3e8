#!/usr/bin/env bash
# Pipelines: a run over stages has the bits of one worker, whatever the schedule and the strategy of its replicas; a run is resumed with
# another layout; a stage that dies is named; what cannot work is refused with the numbers.
. "$(dirname "$0")/../support/lib.sh"
command -v pgrep >/dev/null || skip "pgrep is missing (package procps)"
mkdir -p "$SCRATCH/d" && tokens "$SCRATCH/d/train.bin" 20000 && tokens "$SCRATCH/d/val.bin" 2000 2
base=(train --data "$SCRATCH/d" --model tiny --seq_length 32 --micro_batch_size_per_gpu 1 --global_batch_size 8 --dropout 0.1 --epochs 1
      --save_every 4 --lr 1e-3 --threads 1 --max_steps 12)
run() { local name=$1; shift; timeout 120 "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/$name" "$@" >"$SCRATCH/$name.log" 2>&1; }
equal() { for f in model optimizer; do same "$SCRATCH/one/$2/$f.safetensors" "$SCRATCH/$1/$2/$f.safetensors"; done; }

run one || bad "one worker: $(tail -3 "$SCRATCH/one.log")"
while read -r words; do
  name=$(echo "$words" | tr -cd 'a-z0-9')
  # shellcheck disable=SC2086
  run "$name" $words || bad "$words: $(tail -3 "$SCRATCH/$name.log")"
  equal "$name" step-4; equal "$name" epoch-1
  python3 - "$SCRATCH" "$name" <<'PY' || bad "$words: its metrics"
import json, sys
def load(n): return json.load(open(f"{sys.argv[1]}/{n}/training_metrics.json"))
a, b = load("one"), load(sys.argv[2])
for x, y in zip(a["epochs"], b["epochs"], strict=True):
    for k in ("tokens_processed_global", "train_loss_avg_global", "val_loss_avg_global"):
        assert x[k] == y[k], (k, x[k], y[k])
p, s = b["lockstep"]["pipeline"], b["lockstep"]["step_split"]
assert len(p["per_stage"]) == p["stages"] and 0 <= p["bubble_measured"] < 1 and 0 <= p["bubble_predicted"] < 1
# every boundary between parts carries M activations of (T, C) floats forward, and as many gradients back
M, v, P, block = p["micro_batches"], p["interleave"], p["stages"], 4 * 32 * 128
sent = sum(x["sent_bytes_per_step"] for x in p["per_stage"])
assert sent >= 2 * M * (P * v - 1) * block, (sent, M, P, v)
l = json.load(open(f"{sys.argv[1]}/{sys.argv[2]}/launcher_metadata.json"))
assert l["lockstep"]["started_by"] == "-n" and len(l["lockstep"]["workers"]) == l["world_size"], l["lockstep"]
rows = json.load(open(f"{sys.argv[1]}/{sys.argv[2]}/pipeline.json"))["rows"]
kinds = {}
for r in rows: kinds[r["kind"]] = kinds.get(r["kind"], 0) + 1
assert kinds["forward"] == M * P * v, kinds
PY
done <<'E2'
-n 2 --pp 2
-n 4 --pp 4 --schedule gpipe
-n 2 --pp 2 --schedule naive
-n 4 --pp 2 --schedule zb --strategy zero3
-n 4 --pp 2 --interleave 2 --strategy zero2
-n 8 --pp 4 --strategy zero1
-n 4 --pp 2 --strategy dp
-n 2 --pp 2 --stages 0-1,2-5 --recompute
-n 4 --pp 2 --stages measured
E2

# a schedule from a file, made by plan
"$LOCKSTEP" plan --schedule zb --pp 2 --micro 8 --export "$SCRATCH/zb.txt" >/dev/null || bad "plan --export"
run file -n 2 --pp 2 --schedule "$SCRATCH/zb.txt" || bad "schedule from a file: $(tail -3 "$SCRATCH/file.log")"
equal file epoch-1
# a rank that computes all gradients of a chunk before those of the next one: its neighbour receives them later than they are made
cat >"$SCRATCH/halves.txt" <<'E2'
lockstep-schedule 1
name halves
stages 2
micro 8
chunks 2
messages auto
E2
for rank in 0 1; do
  echo "rank $rank"
  for x in F?.0 F?.1 B?.1 B?.0; do for m in 0 1 2 3 4 5 6 7; do printf '%s ' "${x/\?/$m}"; done; echo; done
done >>"$SCRATCH/halves.txt"
run halves -n 2 --pp 2 --interleave 2 --schedule "$SCRATCH/halves.txt" --comm_timeout 20 || bad "halves: $(tail -3 "$SCRATCH/halves.log")"
equal halves epoch-1
# a gradient that is sent some actions after it was made: its memory is not received into before
"$LOCKSTEP" plan --schedule 1f1b --pp 3 --micro 8 --export "$SCRATCH/1f1b.txt" >/dev/null || bad "plan --export"
sed -E 's/(sg[0-9]+@0) (ra[0-9]+@0 F[0-9]+ sa[0-9]+@2)/\2 \1/g' "$SCRATCH/1f1b.txt" >"$SCRATCH/late.txt"
cmp -s "$SCRATCH/1f1b.txt" "$SCRATCH/late.txt" && bad "late.txt: nothing was moved"
run late -n 3 --pp 3 --schedule "$SCRATCH/late.txt" || bad "a gradient that is sent late: $(tail -3 "$SCRATCH/late.log")"
equal late epoch-1

# pp4, then zero3 on 2, then pp2 x dp2: one run
run chain -n 4 --pp 4 --max_steps 12 & pid=$!
await $pid [ -d "$SCRATCH/chain/step-4" ] || bad "chain: no step-4: $(tail -3 "$SCRATCH/chain.log")"
pkill -TERM -f "checkpoint_path $SCRATCH/chain"; wait $pid
run chain -n 2 --strategy zero3 --resume --save_every 2 & pid=$!
await $pid [ -d "$SCRATCH/chain/step-8" ] || bad "chain: no step-8: $(tail -3 "$SCRATCH/chain.log")"
pkill -TERM -f "checkpoint_path $SCRATCH/chain"; wait $pid
run chain -n 4 --pp 2 --strategy ddp --resume || bad "chain: $(tail -3 "$SCRATCH/chain.log")"
equal chain epoch-1

# a stage that dies
"$LOCKSTEP" "${base[@]}" --epochs 500 --max_steps 100000 --save_every 0 --comm_timeout 400 --checkpoint_path "$SCRATCH/killed" -n 4 --pp 4 >/dev/null 2>"$SCRATCH/killed.err" &
parent=$!
await $parent [ -s "$SCRATCH/killed/metrics.jsonl" ] || bad "a dead stage: no step: $(tail -2 "$SCRATCH/killed.err")"
victim=$(pgrep -P $parent | sed -n 3p); kill -9 "$victim"; begin=$SECONDS; wait $parent; code=$?
[ $code = 4 ] || bad "a dead stage: exit code $code"
[ $((SECONDS - begin)) -lt 60 ] || bad "a dead stage: $((SECONDS - begin)) s"
grep -q "rank 2.*was killed by signal 9" "$SCRATCH/killed.err" || bad "a dead stage is not named: $(tail -2 "$SCRATCH/killed.err")"

# refusals, before anything is allocated
expect 2 "units" "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/x" -n 8 --pp 8
expect 2 "pp 3 x --tp 1 needs a multiple of 3 workers" "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/x" -n 4 --pp 3
expect 2 "interleaving 4" "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/x" -n 2 --pp 2 --interleave 4
expect 2 "unit" "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/x" -n 2 --pp 2 --stages 0-1,3-5
expect 2 "recompute" "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/x" -n 2 --pp 2 --schedule zb --recompute
expect 2 "micro" "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/x" -n 2 --pp 2 --schedule "$SCRATCH/zb.txt" --global_batch_size 4
expect 2 "schedule" "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/x" --schedule gpipe
done_tests
