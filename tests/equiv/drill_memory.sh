#!/usr/bin/env bash
# A supervised run in a control group whose memory runs out (needs root): the kernel kills a worker, the run records "out of memory", restarts and ends
# with the bits of one worker.
[ "$(id -u)" = 0 ] || { echo "SKIPPED: making a control group needs root"; exit 77; }
[ -n "${LS_TEST_ALL:-}" ] || { echo "SKIPPED: runs with LS_TEST_ALL=1"; exit 77; }
. "$(dirname "$0")/../support/lib.sh"
if [ -e /sys/fs/cgroup/memory/memory.limit_in_bytes ]; then root=/sys/fs/cgroup/memory limit=memory.limit_in_bytes events=memory.oom_control
else root=/sys/fs/cgroup limit=memory.max events=memory.events; fi
group=$root/lockstep-test.$$
fill=/dev/shm/lockstep-test-fill.$$
at_end() { rm -f "$fill"; rmdir "$group" 2>/dev/null; }
mkdir "$group" 2>/dev/null && echo 400M >"$group/$limit" 2>/dev/null || skip "no control group of memory can be made in $root"
kills() { sed -n 's/^oom_kill //p' "$group/$events"; }
[ "$(kills)" = 0 ] || skip "the kernel does not count the processes that it kills"
inside() { bash -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group" "$@"; }
tokens "$SCRATCH/train.bin" 20000
base=(train --train_data_path "$SCRATCH/train.bin" --model tiny --num_layers 2 --num_heads 2 --seq_length 32 --micro_batch_size_per_gpu 1 --global_batch_size 4
      --lr 1e-3 --threads 1 --max_steps 400 --save_every 10 --keep_last 1)
"$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/one" >"$SCRATCH/log" 2>&1 || bad "one worker: $(tail -n 2 "$SCRATCH/log")"
for strategy in ddp zero3; do
  before=$(kills)
  inside timeout -k 5 120 "$LOCKSTEP" "${base[@]}" -n 2 --strategy $strategy --max_restarts 3 --checkpoint_path "$SCRATCH/$strategy" >"$SCRATCH/$strategy.log" 2>&1 &
  job=$!
  await $job grep -qs '"step": 15,' "$SCRATCH/$strategy/metrics.jsonl" || bad "$strategy: no step 15: $(tail -n 2 "$SCRATCH/$strategy.log")"
  # files in memory count for the group of the process that writes them
  for _ in $(seq 200); do
    [ "$(kills)" = "$before" ] || break
    inside dd if=/dev/zero of="$fill" bs=1M count=4 oflag=append conv=notrunc 2>/dev/null
  done
  rm -f "$fill"
  [ "$(kills)" != "$before" ] || bad "$strategy: the kernel killed no process"
  wait $job || bad "$strategy: exit code $?: $(tail -n 3 "$SCRATCH/$strategy.log")"
  grep -q '"event": "failure".*"cause": "out of memory"' "$SCRATCH/$strategy/events.jsonl" || bad "$strategy: $(grep failure "$SCRATCH/$strategy/events.jsonl")"
  for f in model optimizer; do same "$SCRATCH/one/epoch-1/$f.safetensors" "$SCRATCH/$strategy/epoch-1/$f.safetensors"; done
done
done_tests
