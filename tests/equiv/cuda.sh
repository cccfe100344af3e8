#!/usr/bin/env bash
# The program with --device cuda, on the emulated device: losses close to those of the CPU; the same bits with and without graphs, with
# activations computed again, with threads in another order, and with memory that the host cannot access; and one clear line for each reason why a device is not available.
. "$(dirname "$0")/../support/lib.sh"
export LS_PLUGIN_DIR=${LS_BUILD:-$LS_SOURCE/build}/emu LS_GEMM_TUNE=0 XDG_CACHE_HOME=$SCRATCH/cache
[ -f "$LS_PLUGIN_DIR/lockstep_cuda.so" ] || skip "no emulated device: built with the tests (LS_TESTS)"
d=$SCRATCH/d
mkdir -p "$d" && tokens "$d/train.bin" 3000 && tokens "$d/val.bin" 100 2
# run NAME [options]: some steps into $SCRATCH/NAME
run() {
  local name=$1
  shift
  "$LOCKSTEP" train --data "$d" --model tiny --num_layers 2 --num_heads 1 --embedding_size 64 --seq_length 32 --micro_batch_size_per_gpu 1 --gradient_accumulation_steps 2 --max_steps 4 \
    --checkpoint_path "$SCRATCH/$name" "$@" >"$SCRATCH/$name.out" 2>&1 ||
    { bad "$name: exit code $?: $(tail -n 3 "$SCRATCH/$name.out")"; return 1; }
}
# near A B LIMIT: losses and norms of two runs
near() {
  python3 - "$SCRATCH/$1/metrics.jsonl" "$SCRATCH/$2/metrics.jsonl" "$3" <<'PY' || bad "$1 and $2 are not within $3"
import json, sys
a, b = ([json.loads(l) for l in open(p)] for p in sys.argv[1:3])
limit = float(sys.argv[3])
assert len(a) == len(b) == 4
for x, y in zip(a, b):
    for k in ("loss", "grad_norm"):
        assert abs(x[k] - y[k]) <= limit * abs(x[k]), (x["step"], k, x[k], y[k])
PY
}
bits() { # A B: the same parameters and moments
  local f
  for f in $(cd "$SCRATCH/$1/epoch-1" && find . -name '*.safetensors'); do same "$SCRATCH/$1/epoch-1/$f" "$SCRATCH/$2/epoch-1/$f"; done
}

run cpu # fp32 and fp16 also in equiv/device
[ -z "${LS_TEST_ALL:-}" ] || { run fp32 --device cuda --precision fp32 && near cpu fp32 1e-5; }
LS_GEMM_FP32=tensor run tensor --device cuda --precision fp32 && near cpu tensor 1e-5 && grep -q '6xBF16 kernel' "$SCRATCH/tensor.out" || bad "fp32 products on tensor cores"
run bf16 --device cuda --precision bf16 --reference_output && near cpu bf16 5e-3
[ -z "${LS_TEST_ALL:-}" ] || { run fp16 --device cuda --precision fp16 && near cpu fp16 5e-3; }
# the line of a step reports only the memory of the device: its plan, which never grows
grep '^\[Rank 0\] Step' "$SCRATCH/bf16.out" | sed 's/.*Mem Curr: \(.*\), Mem Peak: \(.*\)/\1 \2/' >"$SCRATCH/memory"
[ -s "$SCRATCH/memory" ] && awk '$1 != $2 { exit 1 }' "$SCRATCH/memory" || bad "memory of a device: $(head -n 1 "$SCRATCH/memory")"
LS_CUDA_GRAPHS=0 run direct --device cuda --precision bf16 && bits bf16 direct
run recomputed --device cuda --precision bf16 --recompute && bits bf16 recomputed
LS_EMU_ORDER=3 run shuffled --device cuda --precision bf16 && bits bf16 shuffled
grep -q 'backward with wgmma for heads of 64' "$SCRATCH/bf16.out" || bad "the line of the model does not name wgmma"
LS_FLASH_WGMMA=0 LS_EMU_ORDER=5 run mma --device cuda --precision bf16 && bits bf16 mma || bad "attention backward without wgmma"
! grep -q wgmma "$SCRATCH/mma.out" || bad "LS_FLASH_WGMMA=0 uses wgmma"
LS_EMU_PROTECT=1 run protected --device cuda --precision bf16 && bits bf16 protected

expect 2 "no CUDA device" env LS_EMU_DEVICES=0 "$LOCKSTEP" train --data "$d" --model tiny --max_steps 1 --device cuda
expect 2 "the NVIDIA driver is too old" env LS_EMU_DEVICES=-1 "$LOCKSTEP" train --data "$d" --model tiny --max_steps 1 --device cuda
expect 2 "CUDA device 7 does not exist: there is 1" "$LOCKSTEP" train --data "$d" --model tiny --max_steps 1 --device cuda:7
expect 5 "not enough memory: the run needs" env LS_EMU_MEMORY=9000000 "$LOCKSTEP" train --data "$d" --model tiny --max_steps 1 --device cuda \
  --seq_length 32 --micro_batch_size_per_gpu 1 --checkpoint_path "$SCRATCH/none"
done_tests
