#!/usr/bin/env bash
# A supervised run whose disk is full for a while (a small tmpfs; needs root): no checkpoint is lost or half written, the run ends by itself with the bits of one
# worker. Also with --save_failures stop, where the run restarts.
[ "$(id -u)" = 0 ] || { echo "SKIPPED: mounting a small disk needs root"; exit 77; }
[ -n "${LS_TEST_ALL:-}" ] || { echo "SKIPPED: runs with LS_TEST_ALL=1"; exit 77; }
if [ -z "${LS_OWN_MOUNTS:-}" ]; then # mounts of this test end with it
  why=$(unshare --mount true 2>&1) || { echo "SKIPPED: $why"; exit 77; }
  LS_OWN_MOUNTS=1 exec unshare --mount --propagation private bash "$0"
fi
. "$(dirname "$0")/../support/lib.sh"
disk=$SCRATCH/disk
at_end() { umount -l "$disk" 2>/dev/null; }
mkdir "$disk" && mount -t tmpfs -o size=64m tmpfs "$disk" || skip "no tmpfs"
tokens "$SCRATCH/train.bin" 20000
base=(train --train_data_path "$SCRATCH/train.bin" --model tiny --num_layers 2 --num_heads 2 --seq_length 32 --micro_batch_size_per_gpu 1 --global_batch_size 4 --lr 1e-3 --threads 1 --max_steps 400 --save_every 10 --keep_last 1)
"$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/one" >"$SCRATCH/log" 2>&1 || bad "one worker: $(tail -n 2 "$SCRATCH/log")"
for mode in warn stop; do
  timeout -k 5 120 "$LOCKSTEP" "${base[@]}" -n 2 --max_restarts 20 --save_failures $mode --checkpoint_path "$disk/$mode" >"$SCRATCH/$mode.log" 2>&1 &
  job=$!
  await $job grep -qs '"step": 15,' "$disk/$mode/metrics.jsonl" || bad "$mode: no step 15: $(tail -n 2 "$SCRATCH/$mode.log")"
  head -c 64m /dev/zero >"$disk/filler" 2>/dev/null # until nothing is free
  await $job grep -q "No space left\|MiB free" "$SCRATCH/$mode.log" || bad "$mode: the disk was not full: $(tail -n 2 "$SCRATCH/$mode.log")"
  rm "$disk/filler"
  wait $job || bad "$mode: exit code $?: $(tail -n 3 "$SCRATCH/$mode.log")"
  for f in model optimizer; do same "$SCRATCH/one/epoch-1/$f.safetensors" "$disk/$mode/epoch-1/$f.safetensors"; done
  rm -rf "${disk:?}/$mode"
done
done_tests
