#!/usr/bin/env bash
# V100 and T4, played by the emulated device: every strategy in fp16 has the weights of one worker, bit for bit; so has a run that lost its last checkpoint and is resumed on two workers; and
# cuBLASLt without any fused epilogue (bias, GELU, its slope, sums) gives close results.
. "$(dirname "$0")/../support/lib.sh"
export LS_PLUGIN_DIR=${LS_BUILD:-$LS_SOURCE/build}/emu LS_GEMM_TUNE=0 XDG_CACHE_HOME=$SCRATCH/cache
[ -f "$LS_PLUGIN_DIR/lockstep_cuda.so" ] || skip "no emulated device: built with the tests (LS_TESTS)"
d=$SCRATCH/d
mkdir -p "$d" && tokens "$d/train.bin" 2000 && tokens "$d/val.bin" 100 2
# run NAME [options]: two steps of two sequences into $SCRATCH/NAME
run() {
  local name=$1
  shift
  timeout -k 5 120 "$LOCKSTEP" train --data "$d" --model tiny --num_layers 2 --num_heads 2 --embedding_size 64 --seq_length 16 --global_batch_size 2 --max_steps 2 --max_val_steps 0 \
    --micro_batch_size_per_gpu 1 --device cuda --checkpoint_path "$SCRATCH/$name" "$@" >"$SCRATCH/$name.out" 2>&1 || { bad "$name: exit code $?: $(tail -n 3 "$SCRATCH/$name.out")"; return 1; }
}
bits() { same "$SCRATCH/$1/epoch-1/model.safetensors" "$SCRATCH/$2/epoch-1/model.safetensors"; }
# near A B LIMIT: losses and norms
near() {
  python3 - "$SCRATCH/$1/metrics.jsonl" "$SCRATCH/$2/metrics.jsonl" "$3" <<'PY' || bad "$1 and $2 are not within $3"
import json, sys
a, b = ([json.loads(l) for l in open(p)] for p in sys.argv[1:3])
for x, y in zip(a, b, strict=True):
    for k in ("loss", "grad_norm"):
        assert abs(x[k] - y[k]) <= float(sys.argv[3]) * abs(x[k]), (x["step"], k, x[k], y[k])
PY
}
for card in v100 t4; do
  export LS_EMU_GPU=$card
  run $card-1 && grep -q 'F16' "$SCRATCH/$card-1.out" || bad "$card: not in fp16"
  for s in dp ddp zero1 zero2 zero3; do run $card-$s -n 2 --strategy $s && bits $card-1 $card-$s; done
  run $card-pp -n 2 --pp 2 && bits $card-1 $card-pp
  run $card-tp -n 2 --tp 2 && near $card-1 $card-tp 1e-2
  LS_EMU_EPILOGUES=0 run $card-plain && near $card-1 $card-plain 5e-3 # a bias is added after the product is rounded
done
export LS_EMU_GPU=t4
run fp32 --precision fp32 && near t4-1 fp32 1e-2
LS_EMU_EPILOGUES=0 run fp32-plain --precision fp32 && near fp32 fp32-plain 1e-6 # GELU's and the sums' orders are the kernels'
# the checkpoint of step 2 is lost
run killed --save_every 1
rm -r "$SCRATCH/killed/epoch-1"
timeout -k 5 120 "$LOCKSTEP" train --resume "$SCRATCH/killed" -n 2 --strategy zero2 >"$SCRATCH/resumed.out" 2>&1 || bad "resume: $(tail -n 2 "$SCRATCH/resumed.out")"
grep -q '^step 2' "$SCRATCH/resumed.out" || bad "step 2 was not repeated: $(tail -n 3 "$SCRATCH/resumed.out")"
bits t4-1 killed
done_tests
