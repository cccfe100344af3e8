#!/usr/bin/env bash
# Operations that a device records and replays: the state that a strategy keeps on the host (buckets, gradients in flight, the place of a sum) must
# follow, whatever the number of micro-batches. One worker has the bits of `single` with every strategy, and these are the bits without graphs.
. "$(dirname "$0")/../support/lib.sh"
export LS_PLUGIN_DIR=${LS_BUILD:-$LS_SOURCE/build}/emu XDG_CACHE_HOME=$SCRATCH/cache
[ -f "$LS_PLUGIN_DIR/lockstep_cuda.so" ] || skip "no emulated device: built with the tests (LS_TESTS)"
tokens "$SCRATCH/ids.bin" 3000
# run NAME MICRO [options]: three steps (run, recorded, replayed), with buckets of odd sizes that split units
run() {
  local name=$1 micro=$2
  shift 2
  timeout -k 5 120 "$LOCKSTEP" train --train_data_path "$SCRATCH/ids.bin" --model tiny --num_layers 2 --num_heads 2 --embedding_size 64 --seq_length 16 --micro_batch_size_per_gpu 1 \
    --global_batch_size "$micro" --max_steps 3 --threads 1 --device cuda --precision fp32 --bucket 12499 --gather_bucket 7499 \
    --prefetch_bucket 2499 --checkpoint_path "$SCRATCH/$name" "$@" >"$SCRATCH/$name.log" 2>&1 ||
    { bad "$name: exit code $?: $(tail -n 2 "$SCRATCH/$name.log")"; return 1; }
}
check() { # MICRO STRATEGY...
  local micro=$1 s f
  shift
  LS_CUDA_GRAPHS=0 run "direct-$micro" "$micro" --strategy single || return
  for s in "$@"; do
    run "$s-$micro" "$micro" --strategy "$s" || continue
    for f in model optimizer; do same "$SCRATCH/direct-$micro/epoch-1/$f.safetensors" "$SCRATCH/$s-$micro/epoch-1/$f.safetensors"; done
  done
}
check 4 single ddp zero1 zero2 zero3
check 2 zero1 zero2
if [ "${LS_TEST_ALL:-0}" = 1 ]; then
  check 8 dp ddp zero1 zero2 zero3
  check 16 ddp zero1 zero2
  check 3 ddp zero2 # not a power of two
fi
done_tests
