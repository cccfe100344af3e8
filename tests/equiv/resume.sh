#!/usr/bin/env bash
# Two runs, runs killed with SIGKILL at random times and resumed, and runs with other thread counts end with the same bytes.
. "$(dirname "$0")/../support/lib.sh"
mkdir -p "$SCRATCH/d" && tokens "$SCRATCH/d/train.bin" 20000 && tokens "$SCRATCH/d/val.bin" 2000 2
args=(train --data "$SCRATCH/d" --model tiny --num_layers 2 --seq_length 64 --micro_batch_size_per_gpu 2 --grad_accum_steps 3 --dropout 0.1 --epochs 2
      --max_train_steps 36 --save_every 5 --keep_last 2 --lr 1e-3)
run() { local name=$1; shift; "$LOCKSTEP" "${args[@]}" --checkpoint_path "$SCRATCH/$name" "$@" >>"$SCRATCH/$name.log" 2>&1; }

run whole --threads 2 || bad "the first run: $(tail -3 "$SCRATCH/whole.log")"
run again --threads 2 || bad "the second run"
run one --threads 1 || bad "one thread"
run three --threads 3 || bad "three threads"
for other in again one three; do
  same "$SCRATCH/whole/epoch-2/model.safetensors" "$SCRATCH/$other/epoch-2/model.safetensors"
  same "$SCRATCH/whole/epoch-2/optimizer.safetensors" "$SCRATCH/$other/epoch-2/optimizer.safetensors"
done

# kill -9 at random times until a run completes
rounds=1; [ "${LS_TEST_ALL:-0}" = 1 ] && rounds=20
for _ in $(seq $rounds); do
  rm -rf "$SCRATCH/killed"
  for try in $(seq 30); do
    "$LOCKSTEP" "${args[@]}" --checkpoint_path "$SCRATCH/killed" --resume >"$SCRATCH/killed.log" 2>&1 &
    pid=$!
    sleep "0.$((RANDOM % 9))$((RANDOM % 9))"
    kill -9 $pid 2>/dev/null
    wait $pid 2>/dev/null
    [ -e "$SCRATCH/killed/RUN_COMPLETE.txt" ] && break
    [ "$try" -gt 8 ] && break
  done
  run killed --resume || bad "resume after SIGKILL: $(tail -3 "$SCRATCH/killed.log")"
  same "$SCRATCH/whole/epoch-2/model.safetensors" "$SCRATCH/killed/epoch-2/model.safetensors"
  same "$SCRATCH/whole/epoch-2/optimizer.safetensors" "$SCRATCH/killed/epoch-2/optimizer.safetensors"
done

# SIGTERM saves and ends with 143; the metrics of the resumed run are those of the whole one
rm -rf "$SCRATCH/term"
"$LOCKSTEP" "${args[@]}" --reference_output --checkpoint_path "$SCRATCH/term" >"$SCRATCH/term.log" 2>&1 &
pid=$!
await $pid [ -s "$SCRATCH/term/metrics.jsonl" ] || bad "no step before SIGTERM: $(tail -3 "$SCRATCH/term.log")"
kill -TERM $pid
wait $pid
code=$?
if [ $code = 143 ]; then
  [ -e "$SCRATCH/term/RUN_COMPLETE.txt" ] && bad "a stopped run looks complete"
  ls -d "$SCRATCH"/term/step-* >/dev/null 2>&1 || bad "SIGTERM left no checkpoint"
  grep -q "EXITING cleanly" "$SCRATCH/term.log" || bad "no EXITING line after SIGTERM"
else
  [ $code = 0 ] || bad "SIGTERM: exit code $code: $(tail -3 "$SCRATCH/term.log")"
fi
run term --resume || bad "resume after SIGTERM"
same "$SCRATCH/whole/epoch-2/model.safetensors" "$SCRATCH/term/epoch-2/model.safetensors"
python3 - "$SCRATCH" <<'PY' || bad "metrics of the resumed run differ"
import json, sys
a, b = (json.load(open(f"{sys.argv[1]}/{n}/training_metrics.json")) for n in ("whole", "term"))
for x, y in zip(a["epochs"], b["epochs"], strict=True):
    for k in ("micro_steps", "optimizer_steps", "tokens_processed_global", "train_loss_avg_global", "val_loss_avg_global"):
        assert x[k] == y[k], (k, x[k], y[k])
la, lb = ([{k: v for k, v in json.loads(l).items() if k in ("step", "loss", "lr", "grad_norm")} for l in open(f"{sys.argv[1]}/{n}/metrics.jsonl")]
          for n in ("whole", "term"))
assert la == lb and len(la) == 24, (len(la), len(lb))
PY
done_tests
