#!/usr/bin/env bash
# Workers that use the shape of a product for the first time at the same time measure its algorithms once, and all use the fastest: on the emulated
# device, with measurements (LS_GEMM_TUNE=1), two workers that start without a cache file have the bits of one worker that finds it.
. "$(dirname "$0")/../support/lib.sh"
cd "$SCRATCH" || exit 1
[ -e "$LS_BUILD/emu/lockstep_cuda.so" ] || skip "there is no emulated device (emu/lockstep_cuda.so)"
export LS_PLUGIN_DIR=$LS_BUILD/emu LOCKSTEP_CACHE=$SCRATCH/cache LS_GEMM_TUNE=1
mkdir -p d && tokens d/train.bin 3000 && tokens d/val.bin 40 2
train() {
  timeout 300 "$LOCKSTEP" train --data d --model tiny --num_layers 1 --embedding_size 64 --seq_length 16 --micro_batch_size_per_gpu 1 \
    --global_batch_size 2 --max_steps 2 --device cuda --precision bf16 "$@" >out 2>err || bad "$*: $(head -c 400 err)"
}
losses() { python3 -c "import json,sys; print([(r['loss'], r.get('grad_norm')) for r in map(json.loads, open(sys.argv[1]))])" "$1/metrics.jsonl"; }

train -n 2 --strategy ddp --checkpoint_path two
lines=$(cat cache/gemm-*.txt | wc -l)
[ "$lines" -gt 5 ] || bad "the file of products has $lines lines"
cp cache/gemm-*.txt before
train -n 1 --checkpoint_path one
train -n 2 --strategy zero2 --checkpoint_path cut
cmp -s before cache/gemm-*.txt || bad "a shape was measured that the file knew"
[ "$(losses one)" = "$(losses two)" ] || bad "one worker: $(losses one), two: $(losses two)"
[ "$(losses one)" = "$(losses cut)" ] || bad "one worker: $(losses one), zero2: $(losses cut)"
done_tests
