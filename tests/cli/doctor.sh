#!/usr/bin/env bash
# doctor lists every part with its state, also as JSON, and fails when a part that every run needs does not work.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/tmp"
fail() { echo "FAILED: $*"; exit 1; }

TMPDIR=$work/tmp "$LOCKSTEP" doctor >"$work/out" 2>"$work/err" || { cat "$work/out" "$work/err"; fail "doctor does not succeed on this machine"; }
[[ ! -s $work/err ]] || fail "stderr is not empty: $(cat "$work/err")"
for part in default cpu memory openmp compute reference blas files mpi cuda plugin libraries nvml nccl slurm; do
    grep -Eq "^  $part +(ok|missing|failed) +[^ ]" "$work/out" || fail "no row for $part"
done
for part in cpu memory openmp compute reference files; do
    grep -Eq "^  $part +ok " "$work/out" || fail "$part is not ok"
done
[[ -z $(ls "$work/tmp") ]] || fail "doctor did not remove its file"

# --threads sets the number of threads, not OpenMP's variable
n=$(python3 -c 'import os; print(len(os.sched_getaffinity(0)))')
env -u OMP_THREAD_LIMIT OMP_NUM_THREADS=$((n + 1)) "$LOCKSTEP" doctor >"$work/threads"
grep -Eq "^  openmp +ok +version [0-9]+, $n threads? \(OMP_NUM_THREADS=$((n + 1)) is not used; --threads sets the number\)$" "$work/threads" ||
    fail "OMP_NUM_THREADS: $(grep openmp "$work/threads")"
env -u OMP_NUM_THREADS "$LOCKSTEP" doctor | grep -E "^  openmp " | grep -q OMP_NUM_THREADS && fail "a variable that is not set is named"

# OpenMP's variable pins the first thread to one core before main: the other cores are still usable
cores() { grep -Eo '[0-9]+ of [0-9]+ cores usable' "$1"; }
OMP_PROC_BIND=true "$LOCKSTEP" doctor >"$work/bound"
if ldd "$LOCKSTEP" | grep -q libomp && ldd "$LOCKSTEP" | grep -q libgomp; then # clang's and that of the BLAS: one pins the thread before the other counts cores
    echo "two OpenMP runtimes: the cores with OMP_PROC_BIND are not compared"
elif [[ $(cores "$work/bound") != "$(cores "$work/out")" ]]; then
    fail "OMP_PROC_BIND: $(cores "$work/bound"), without it $(cores "$work/out")"
fi

"$LOCKSTEP" doctor --json >"$work/json"
python3 - "$work/json" <<'P'
import json, sys
d = json.load(open(sys.argv[1]))
assert d["ok"] is True, d
assert [p["name"] for p in d["parts"]] == "default cpu memory openmp compute reference blas files mpi cuda plugin libraries nvml nccl slurm".split(), d
assert all(p["state"] in ("ok", "missing", "failed") and p["text"] for p in d["parts"]), d
P

# a container that leaves too little memory, where this user may put files in the place of the control groups
mkdir "$work/group"
echo 300000000 >"$work/group/memory.max"
echo 200000000 >"$work/group/memory.current"
in_container() { unshare -rm sh -c 'mount --bind "$0" /sys/fs/cgroup && exec "$@"' "$work/group" "$@"; }
if in_container true 2>/dev/null; then
    rc=0
    in_container "$LOCKSTEP" doctor >"$work/out" 2>"$work/err" || rc=$?
    [[ $rc -eq 4 ]] || fail "95 MiB of memory give exit code $rc, not 4"
    grep -Eq "^  memory +failed .*limited to 286.1 MiB \(95.4 MiB left\)" "$work/out" || fail "the limit of a container: $(grep -A1 '^  memory' "$work/out")"
    grep -q "raise the memory limit" "$work/out" || fail "no advice for the limit"
else
    echo "no user namespaces: the limit of a container is not tested"
fi

rc=0
TMPDIR=$work/none "$LOCKSTEP" doctor >"$work/out" 2>"$work/err" || rc=$?
[[ $rc -eq 4 ]] || fail "a missing folder gives exit code $rc, not 4"
grep -Eq "^  files +failed +folder .* does not exist" "$work/out" || fail "the row does not state the reason"
grep -q "files does not work on this machine" "$work/err" || fail "the error does not name the part"
[[ ! -e $work/none ]] || fail "doctor created TMPDIR"

rc=0
TMPDIR=$work/none "$LOCKSTEP" doctor --json >"$work/json" 2>/dev/null || rc=$?
[[ $rc -eq 4 ]] && grep -q '"ok": false' "$work/json" || fail "--json does not report that a part failed"

rc=0
"$LOCKSTEP" doctor --jsn >/dev/null 2>"$work/err" || rc=$?
[[ $rc -eq 2 ]] && grep -q "did you mean --json" "$work/err" || fail "a misspelt option is not refused with its name"
# ---- a variable that names no kernel: nothing of the machine is missing
for v in LS_GEMM LS_SIMD; do
    rc=0
    env $v=abacus "$LOCKSTEP" doctor >"$work/out" 2>"$work/err" || rc=$?
    [[ $rc -eq 2 ]] && grep -q "compute: an environment variable has a wrong value" "$work/err" || fail "$v=abacus gives $rc: $(cat "$work/err")"
    grep -Eq "^  compute +failed +cpu: $v=abacus names no kernels?: this CPU has .*; unset it, or use one of these" "$work/out" || fail "$v: $(cat "$work/out")"
    ! grep -q "see the rows above" "$work/out" || fail "$v: the row says that a part is missing"
    [[ $v == LS_SIMD ]] || grep -Eq "this CPU has .*plain.* for fp32 and .*-emulated.* for bf16" "$work/out" || fail "$v: the kernels of both types: $(cat "$work/out")"
done
rc=0
env LS_GEMM=plain LS_SIMD=abacus "$LOCKSTEP" doctor >"$work/out" 2>/dev/null || rc=$?
[[ $rc -eq 2 ]] && grep -Eq "^  compute +failed +cpu: LS_SIMD=abacus" "$work/out" || fail "a right LS_GEMM and a wrong LS_SIMD give $rc: $(cat "$work/out")"
# ---- the device of commands without --device, and the kernels of a run that does not begin
for v in LS_DEVICE=gpu LS_DEVICE=cuda; do
    [[ $v == LS_DEVICE=gpu ]] || ! "$LOCKSTEP" doctor --device cuda >/dev/null 2>&1 || continue # there is a GPU
    rc=0
    env $v "$LOCKSTEP" doctor >"$work/out" 2>&1 || rc=$?
    [[ $rc -eq 2 ]] && grep -q "^  default  *failed  *.*LS_DEVICE" "$work/out" || fail "$v: exit code $rc: $(head -4 "$work/out")"
    tail -n 1 "$work/out" | grep -q "default: an environment variable has a wrong value" || fail "$v: the error is not the last line of a file"
done
for d in 0 7; do # the emulated device has one
    rc=0
    env LS_PLUGIN_DIR="${LS_BUILD:-$(dirname "$LOCKSTEP")}/emu" LS_EMU_DEVICES=1 LS_DEVICE=cuda:$d "$LOCKSTEP" doctor >"$work/out" 2>&1 || rc=$?
    [[ $d$rc == 00 ]] || { [[ $d$rc == 72 ]] && grep -q "^  default  *failed  *.*LS_DEVICE is cuda:7, and CUDA device 7 does not exist: there is 1, numbered from 0" "$work/out"; } ||
        fail "LS_DEVICE=cuda:$d: exit code $rc: $(head -4 "$work/out")"
done
rc=0
LS_GEMM=abacus "$LOCKSTEP" train "$0" --model tiny --device cpu --print_config >/dev/null 2>"$work/err" || rc=$?
[[ $rc -eq 2 ]] && grep -q "LS_GEMM=abacus names no kernel" "$work/err" || fail "train --print_config with LS_GEMM=abacus: $rc: $(cat "$work/err")"
# ---- a requested device
"$LOCKSTEP" doctor --device cpu >"$work/out" || fail "--device cpu does not succeed"
grep -Eq "^  device +ok .*differs from sums in double by" "$work/out" || fail "--device cpu has no row"
if ! "$LOCKSTEP" doctor | grep -Eq "^  plugin +ok "; then
    rc=0
    "$LOCKSTEP" doctor --device cuda >"$work/out" 2>"$work/err" || rc=$?
    [[ $rc -eq 4 ]] && grep -Eq "^  device +failed +cuda: " "$work/out" || fail "--device cuda without a GPU gives $rc"
fi
rc=0
"$LOCKSTEP" doctor --device tpu >/dev/null 2>"$work/err" || rc=$?
[[ $rc -eq 2 ]] || fail "--device tpu gives exit code $rc, not 2"

# ---- drivers and plugins that are not installed: fakes of libcuda, the CUDA runtime and the plugin
if command -v cc >/dev/null; then
    mkdir "$work/lib" "$work/plugin"
    cat >"$work/cuda.c" <<'C'
#include <stdio.h>
#include <stdlib.h>
static int number(const char *name, int other) { const char *s = getenv(name); return s ? (int)strtol(s, NULL, 10) : other; }
int cuInit(unsigned f) { (void)f; return number("FAKE_INIT", 0); }
int cuDriverGetVersion(int *v) { *v = number("FAKE_DRIVER", 13000); return 0; }
int cuDeviceGetCount(int *n) { *n = number("FAKE_COUNT", 1); return 0; }
int cuDeviceGet(int *d, int i) { *d = i; return 0; }
int cuDeviceGetName(char *s, int n, int d) { (void)d; snprintf(s, (size_t)n, "Fake H200"); return 0; }
int cuDeviceComputeCapability(int *a, int *b, int d) { (void)d; *a = 9; *b = 0; return 0; }
int cuDeviceTotalMem_v2(size_t *n, int d) { (void)d; *n = (size_t)141 << 30; return 0; }
C
    echo 'int cudaRuntimeGetVersion(int *v) { *v = 13000; return 0; }' >"$work/cudart.c"
    cat >"$work/plugin.c" <<'C'
#include "compute/plugin.h"
#include <stdio.h>
#include <stdlib.h>
static int probe(char *words, size_t room)
{
    snprintf(words, room, "0: Fake H200, 141 GiB; attention by cuDNN 9.14");
    return getenv("FAKE_NONE") ? 0 : 1;
}
__attribute__((visibility("default"))) const struct ls_compute_plugin *entry(void) __asm__(LS_COMPUTE_SYMBOL);
const struct ls_compute_plugin *entry(void)
{
    static ls_compute_plugin p = {.abi = LS_COMPUTE_ABI, .name = "cuda", .probe = probe};
    if (getenv("FAKE_ABI")) p.abi = 77;
    return &p;
}
C
    cc -shared -fPIC -o "$work/lib/libcuda.so.1" "$work/cuda.c"
    cc -shared -fPIC -o "$work/lib/libcudart.so.13" "$work/cudart.c"
    cc -std=c11 -D_GNU_SOURCE -I"$LS_SOURCE/src" -shared -fPIC -o "$work/plugin/lockstep_cuda.so" "$work/plugin.c"
    look() { # PART STATE WORDS [VARIABLE=VALUE...]
        local part=$1 state=$2 words=$3
        shift 3
        env "$@" LS_PLUGIN_DIR="$work/plugin" LD_LIBRARY_PATH="$work/lib" "$LOCKSTEP" doctor >"$work/out" 2>&1 || fail "doctor fails with $*"
        grep -A1 -E "^  $part +$state " "$work/out" | grep -q -- "$words" || fail "$part $*: $(grep -A1 -E "^  $part " "$work/out")"
    }
    look cuda ok "1 GPU, driver for CUDA 13.0: 0: Fake H200, capability 9.0, 141.0 GiB"
    look cuda missing "finds no GPU" FAKE_INIT=100
    look cuda missing "unset it, or set it to 0" FAKE_INIT=100 CUDA_VISIBLE_DEVICES=
    look cuda failed "different versions" FAKE_INIT=803
    look cuda failed "restart the machine" FAKE_INIT=803
    look cuda failed "nvidia-fabricmanager" FAKE_INIT=802
    look cuda failed "the driver supports CUDA up to 12.4, but this program was built with 13.0" FAKE_DRIVER=12040
    look cuda failed "install driver 580 or newer" FAKE_DRIVER=12040
    look cuda missing "finds no GPU" FAKE_COUNT=0
    look libraries '(ok|missing)' "runtime 13.0"
    look plugin ok "loads; 0: Fake H200, 141 GiB; attention by cuDNN 9.14"
    look plugin missing "there is no device" FAKE_NONE=1
    look plugin failed "has interface version 77" FAKE_ABI=1
    echo 'garbage' >"$work/plugin/lockstep_cuda.so"
    look plugin failed "cannot load the plugin"
    rm "$work/plugin/lockstep_cuda.so"
    look plugin missing "does not exist"
fi
build=${LS_BUILD:-$(dirname "$LOCKSTEP")}
if [[ -e $build/fake_nvml.so ]]; then
    LS_NVML=$build/fake_nvml.so "$LOCKSTEP" doctor | grep -Eq "^  nvml +ok +driver 580.65.06; first GPU: Fake H200 .*300 W of 700" || fail "no row of NVML"
    LS_NVML=$build/fake_nvml.so FAKE_NVML_REFUSE=power "$LOCKSTEP" doctor | grep -q "refused: power: Not Supported" || fail "a refusal is not reported"
fi
echo "doctor: ok"
