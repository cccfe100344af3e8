#!/usr/bin/env bash
# Checkpoints do not depend on the layout that wrote them: every strategy and number of workers writes the bytes of one worker, resumes from the
# checkpoint of any other layout, and ends with the bytes of an uninterrupted run. Workers are killed and stopped during the runs.
. "$(dirname "$0")/../support/lib.sh"
mkdir -p "$SCRATCH/d" && tokens "$SCRATCH/d/train.bin" 20000 && tokens "$SCRATCH/d/val.bin" 2000 2
args=(train --data "$SCRATCH/d" --model tiny --num_layers 2 --seq_length 32 --micro_batch_size_per_gpu 1 --global_batch_size 4 --dropout 0.1 --epochs 1
      --max_steps 24 --save_every 6 --lr 1e-3 --threads 1)
layout() { [ "$1" = one ] || printf '%s\n' -n "${1#*-}" --strategy "${1%-*}"; }
run() { # NAME LAYOUT [OPTIONS]
  local name=$1 how=$2; shift 2
  # shellcheck disable=SC2046 # layout prints separate options
  "$LOCKSTEP" "${args[@]}" $(layout "$how") --checkpoint_path "$SCRATCH/$name" "$@" >>"$SCRATCH/$name.log" 2>&1
}
equal() { for f in model optimizer; do same "$SCRATCH/whole/$2/$f.safetensors" "$SCRATCH/$1/$2/$f.safetensors"; done; }

run whole one || bad "one worker: $(tail -3 "$SCRATCH/whole.log")"
for how in dp-2 ddp-4 zero1-2 zero2-4 zero3-4; do
  run "$how" "$how" || bad "$how: $(tail -3 "$SCRATCH/$how.log")"
  for at in step-6 step-18 epoch-1; do equal "$how" $at; done
done

# from the checkpoint of one layout to another layout
for pair in "zero3-4 one" "zero3-4 zero3-2" "one zero3-4" "ddp-4 zero2-2" "zero2-4 dp-4" "dp-2 zero1-4" "zero1-2 ddp-2"; do
  read -r from to <<<"$pair"
  [ "$from" = one ] && from=whole
  rm -rf "$SCRATCH/next" && mkdir "$SCRATCH/next" && cp -r "$SCRATCH/$from/step-12" "$SCRATCH/next/"
  run next "$to" --resume || bad "$from, then $to: $(tail -3 "$SCRATCH/next.log")"
  grep -q "resumed from .*step-12" "$SCRATCH/next.log" || bad "$from, then $to: it did not resume"
  equal next epoch-1
  rm -f "$SCRATCH/next.log"
done

# killed and stopped at random times, and each time resumed with another layout
for _ in 1 2; do
  rm -rf "$SCRATCH/chain"
  for how in zero3-4 one zero2-2 ddp-4 zero1-2 zero3-2; do
    # shellcheck disable=SC2046 # layout prints separate options
    "$LOCKSTEP" "${args[@]}" $(layout "$how") --checkpoint_path "$SCRATCH/chain" --resume >"$SCRATCH/chain.log" 2>&1 &
    pid=$!
    sleep "0.$((RANDOM % 4))$((RANDOM % 9))"
    case $((RANDOM % 3)) in
      0) kill -TERM $pid ;;
      1) kill -9 $pid ;;
      2) victim=$(tr " " "\n" </proc/$pid/task/$pid/children | grep . | shuf -n 1); kill -9 "${victim:-$pid}" ;; # a worker
    esac 2>/dev/null
    wait $pid 2>/dev/null
  done
  run chain zero3-4 --resume || bad "the chain: $(tail -3 "$SCRATCH/chain.log")"
  equal chain epoch-1
  ls -d "$SCRATCH"/chain/.[a-z]* >/dev/null 2>&1 && bad "the chain of runs leaves temporary files: $(ls -A "$SCRATCH/chain")"
done
done_tests
