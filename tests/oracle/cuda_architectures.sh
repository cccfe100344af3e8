#!/usr/bin/env bash
# Kernels compile for every architecture that nvcc knows: the faces of products and copies (mma.cuh, gpu.cuh); with LS_TEST_ALL=1 every kernel file,
# and no kernel of attention or AdamW spills registers, except as the head of its file lists.
#   NVCC    [nvcc, or /usr/local/cuda/bin/nvcc]      NVCC70    another one that knows 7.0, which CUDA 13 does not [none]
set -u
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../support/lib.sh"
nvcc=${NVCC:-$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc)} || skip "there is no nvcc"
[ -x "$nvcc" ] || skip "$nvcc does not exist"
all="70 75 80 86 89 90a 100 120"
may_spill() { case $1 in flash_fwd.*) echo 256 ;; flash_bwd.75) echo 16 ;; *) echo 0 ;; esac; } # bytes

cat >"$SCRATCH/faces.cu" <<'C'
#include "compute/cuda/kernels/flash_tile.cuh"
template <class MM, bool ROWS> LS_DEVICE void face(float *y, const typename MM::E *x)
{
    typedef flash_operands<MM, 64> op;
    char *mem = LS_SHARED_DYNAMIC(char);
    const int lane = (int)threadIdx.x & 31;
    uint32_t a[MM::A], b[MM::B];
    float d[2][4] = {};
    flash_load<typename MM::E, 64, true, 64>(mem, 0, x, 64, 0, 64, 64);
    cp_async4(shared_address(mem), x, true);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    op::load(a, shared_address(mem), op::lane_a(lane), 0, 0);
    if (ROWS) op::load_bt(b, shared_address(mem), op::lane_a(lane), 0, 0, lane);
    else op::load(b, shared_address(mem), op::lane_b(lane), 16, 0);
    MM::template products<ROWS>(d, a, b);
    MM::from_sums(a, d);
    MM::template products<ROWS>(d, a, b);
    for (int i = 0; i < 8; i++) y[threadIdx.x * 8 + i] = d[i / 4][i % 4];
}
template <class MM> __global__ void faces(float *y, const typename MM::E *x)
{
    if constexpr (MM::COMPILED) face<MM, false>(y, x), face<MM, true>(y, x);
}
template __global__ void faces<mma_kind<70, f16, 1>>(float *, const f16 *);
template __global__ void faces<mma_kind<70, float, 3>>(float *, const float *);
template __global__ void faces<mma_kind<75, f16, 1>>(float *, const f16 *);
template __global__ void faces<mma_kind<80, f16, 1>>(float *, const f16 *);
template __global__ void faces<mma_kind<80, bf16, 1>>(float *, const bf16 *);
template __global__ void faces<mma_kind<80, float, 3>>(float *, const float *);
C

knows() { "$1" --list-gpu-code 2>/dev/null | grep -qx "sm_${2%a}"; }

# compile NVCC ARCH FILE: name.arch.log, and the object unless it fails
compile() {
  local of
  of=$SCRATCH/$(basename "$3" .cu).$2
  "$1" -allow-unsupported-compiler -std=c++17 -O3 --expt-relaxed-constexpr -I"$LS_SOURCE/src" -arch="sm_$2" -Xptxas -v -cubin -o "$of.cubin" "$3" >"$of.log" 2>&1 ||
    echo "$3 for $2: $(grep -m 3 -i error "$of.log")" >>"$SCRATCH/failed"
}
export -f compile
export SCRATCH LS_SOURCE

files=$SCRATCH/faces.cu
[ "${LS_TEST_ALL:-0}" = 1 ] && files="$files $(echo "$LS_SOURCE"/src/compute/cuda/kernels/*.cu)"
for arch in $all; do
  with=
  for n in "$nvcc" ${NVCC70:+"$NVCC70"}; do [ -n "$with" ] || ! knows "$n" "$arch" || with=$n; done
  [ -n "$with" ] || { echo "not compiled: $arch, which $nvcc does not know" >&2; continue; }
  for f in $files; do printf '%s\0%s\0%s\0' "$with" "$arch" "$f"; done
done >"$SCRATCH/work"
xargs -0 -n 3 -P "$(nproc)" bash -c 'compile "$@"' compile <"$SCRATCH/work"
[ ! -e "$SCRATCH/failed" ] || bad "$(cat "$SCRATCH/failed")"
n=$(find "$SCRATCH" -name '*.cubin' | wc -l)
[ "$n" -gt 0 ] || bad "nothing was compiled"
for log in "$SCRATCH"/flash_*.log "$SCRATCH"/adamw.*.log; do
  [ -e "$log" ] || continue
  name=$(basename "$log" .log)
  most=$(grep -o '[0-9]* bytes spill stores' "$log" | sort -n | tail -1)
  [ "${most%% *}" -le "$(may_spill "$name")" ] || bad "$name spills: $most"
done
echo "$n files compiled"
[ $n_bad = 0 ]
