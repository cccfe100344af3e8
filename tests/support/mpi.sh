# shellcheck shell=bash
# mpi.sh - for test scripts that start jobs with mpirun: skips where there is none, `mpi N [-x VAR=value ...] COMMAND...` starts N ranks.
command -v mpirun >/dev/null || skip "mpirun is missing (package openmpi-bin)"
[ -f "${LS_BUILD:-$(dirname "$LOCKSTEP")}/lockstep_mpi.so" ] || skip "the mpi plugin was not built (package libopenmpi-dev)"
mpirun --version 2>/dev/null | grep -q "Open MPI" || skip "these tests speak Open MPI's mpirun"
LS_BUILD=${LS_BUILD:-$(dirname "$LOCKSTEP")}
[ -e /proc/self/exe ] || skip "there is no /proc: no process can be found to be killed"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none
mpi() { local n=$1; shift; timeout -k 5 120 mpirun --oversubscribe -np "$n" "$@"; }
why=$(mpi 1 true 2>&1 </dev/null) || skip "mpirun starts nothing here: $(echo "$why" | grep -v '^-*$' | head -2 | tr '\n' ' ')"
