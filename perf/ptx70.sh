#!/usr/bin/env bash
# ptx70.sh - builds with device code for compute capability 7.0 alone, as PTX, where the main nvcc is CUDA 13, which begins at 7.5.
#
#   perf/ptx70.sh NVCC BUILD [TARGET...]       NVCC: of CUDA 11.8 or 12; TARGET [lockstep lockstep_cuda cuda_attention cuda_kernels]
#
# With CUDA 12 alone this script is not needed: cmake -DLS_CUDA_ARCH=70-virtual. Here CMake finds CUDA 13 as always (its runtime and libraries are
# linked), and for each kernel file this script runs NVCC in its place. CMAKE_ARGS: more arguments for cmake. At the end the device code of
# what was built is listed. CUDA 11.8 is not supported otherwise; its nvcc takes gcc 12 only with -allow-unsupported-compiler, which is given.
# ls-bench: by name
set -euo pipefail

# As CMake's launcher of compilers: "nvcc ARG..." becomes the other nvcc's command, without CUDA 13's headers and architectures.
if [[ ${LS_PTX70_NVCC:-} && $# -gt 0 && $1 == */nvcc ]]; then
    shift
    args=()
    while (($#)); do
        case $1 in
        --generate-code* | -arch=*) ;;
        -isystem=*) [[ -e ${1#-isystem=}/cuda_runtime_api.h ]] || args+=("$1") ;;
        -isystem) [[ -e $2/cuda_runtime_api.h ]] || args+=(-isystem "$2"); shift ;;
        *) args+=("$1") ;;
        esac
        shift
    done
    [[ "${args[*]}" != */embed_fwd.cu* ]] || args+=(-Xcicc -O0) # optimizing, CUDA 11.8's compiler does not end
    exec "$LS_PTX70_NVCC" -allow-unsupported-compiler -gencode "arch=compute_70,code=compute_70" -include "$LS_PTX70_HEADER" "${args[@]}"
fi

if (($# < 2)) || [[ ! -x $1 ]]; then
    sed -n '2,/^# ls-bench/p' "${BASH_SOURCE[0]}" | sed '$d; s/^# \{0,1\}//' >&2
    exit 2
fi
nvcc=$(realpath -s "$1") build=$2
shift 2
(($#)) || set -- lockstep lockstep_cuda cuda_attention cuda_kernels
self=$(realpath "${BASH_SOURCE[0]}")
cd "$(dirname "$self")/.."
mkdir -p "$build"
# CUDA 13's runtime writes more into this structure than older headers have room for, and instantiates graphs as this function of 11.8 does.
cat >"$build/ptx70.new" <<'H'
#include <cuda_runtime.h>
struct ls_func_attributes : cudaFuncAttributes {
    char room[256];
};
#define cudaFuncAttributes ls_func_attributes
#if CUDART_VERSION < 12000
#define cudaGraphInstantiate cudaGraphInstantiateWithFlags
#endif
H
cmp -s "$build/ptx70.new" "$build/ptx70.h" || mv "$build/ptx70.new" "$build/ptx70.h" # objects depend on it
LS_PTX70_HEADER=$(realpath "$build/ptx70.h")
export LS_PTX70_HEADER LS_PTX70_NVCC=$nvcc LS_CUDA_ARCH=75-virtual
# shellcheck disable=SC2086
cmake -G Ninja -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DLS_CUDA=ON -DCMAKE_CUDA_COMPILER_LAUNCHER="$self" ${CMAKE_ARGS:-} >"$build/ptx70.log"
ninja -C "$build" "$@"
cuobjdump=$(dirname "$nvcc")/cuobjdump
for t in lockstep_cuda.so cuda_attention cuda_kernels; do
    [[ ! -e $build/$t ]] || { echo "$t:"; "$cuobjdump" --list-elf --list-ptx "$build/$t" | sed 's/.*\.\(sm_[0-9a-z]*\)\.\(ptx\|cubin\)$/    \2 \1/' | sort | uniq -c; }
done
