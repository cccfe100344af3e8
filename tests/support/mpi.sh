# shellcheck shell=bash
# mpi.sh - for test scripts that start jobs with mpirun. Skips the test if there is none; `mpi N [-x VAR=value ...] COMMAND...` starts N ranks.
command -v mpirun >/dev/null || skip "mpirun is missing (package openmpi-bin)"
[ -f "${LS_BUILD:-$(dirname "$LOCKSTEP")}/lockstep_mpi.so" ] || skip "the mpi plugin was not built (package libopenmpi-dev)"
mpirun --version 2>/dev/null | grep -q "Open MPI" || skip "these tests need the mpirun of Open MPI"
LS_BUILD=${LS_BUILD:-$(dirname "$LOCKSTEP")}
[ -e /proc/self/exe ] || skip "/proc is missing: the tests cannot find processes to kill"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none
mpi() { local n=$1; shift; timeout -k 5 120 mpirun --oversubscribe -np "$n" "$@"; }
why=$(mpi 1 true 2>&1 </dev/null) || skip "mpirun cannot start a process: $(echo "$why" | grep -v '^-*$' | head -2 | tr '\n' ' ')"
