#!/usr/bin/env bash
# The scripts of the GPU benchmarks, run without a GPU: losses and gradients exchanged through files, and alternating runs with PyTorch on
# the same data.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../support/torch.sh"
build=${LS_BUILD:-$here/../../build}
export LOCKSTEP=${LOCKSTEP:-$build/lockstep} HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error PYTHONDONTWRITEBYTECODE=1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$here/../.."
parts=(losses); [ "${LS_TEST_ALL:-0}" = 1 ] && parts=(losses gradients torch)
"$python" perf/gpu_parity.py "${parts[@]}" --dry --out "$work"
"$python" perf/gpu_vs_torch.py --device cpu --cases dry --modes eager --rounds 2 --segment-s 0.5 --warm 3 --out "$work" --ours-args "--threads 1"
"$python" - "$work" <<'P'
import json, sys
c = json.load(open(f"{sys.argv[1]}/gpu_vs_torch.json"))["cases"][0]
assert [r["side"] for r in c["rows"]] == ["ours", "eager"] and all(len(r["segments"]) == 2 and r["tokens_per_sec"] > 0 for r in c["rows"]), c
assert abs(c["rows"][0]["facts"]["first_loss"] - 5.7) < 0.2, c["rows"][0]["facts"]
P
# the lower bound of a step, from the output of three programs
cat >"$work/cuda_gemm.txt" <<'T'

bf16, 8192 rows
all products of a step: 9.00 ms, 600.0 TFLOP/s; products alone would do 1 thousand tokens/s
T
cat >"$work/cuda_attention.txt" <<'T'
  B16 T512 H12 D64   a device
    flash              forward   0.200 ms  500.0 TFLOP/s 50.1 %   backward   0.600 ms  500.0 TFLOP/s 50.1 %   both   0.800 ms   scratch
    cuDNN              forward   0.100 ms  500.0 TFLOP/s 50.1 %   backward   0.400 ms  500.0 TFLOP/s 50.1 %   both   0.500 ms   scratch
    flash         drop forward   0.010 ms  500.0 TFLOP/s 50.1 %   backward   0.010 ms  500.0 TFLOP/s 50.1 %   both   0.020 ms   scratch
T
printf 'BF16, batch 16 x 512, width 768\n%-26s %9.1f us   best %9.1f us  %8.1f GB/s  %5.1f %% of a copy\n' adamw 700.0 690.0 3000.0 80.0 >"$work/cuda_kernels.txt"
"$python" perf/gpu_roofline.py --texts "$work" --batch 16 --seq 512 >"$work/floor"
grep -q "| products | 9.00 | 600 TFLOP/s |" "$work/floor" && grep -q "| attention | 6.00 | 12 layers, forward cuDNN, backward cuDNN, 0.500 ms each |" "$work/floor" &&
    grep -q "| adamw | 0.70 | 1 x 700 us |" "$work/floor" || { cat "$work/floor"; exit 1; }
echo ok
