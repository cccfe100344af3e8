#!/usr/bin/env bash
# task.sh COMMAND...: one task of a job step: a worker, or with NODE_WORKERS all workers of a node (node.sh). Output also into torchrun_logs/
# (TORCHRUN_LOGS=1); on the master host under nsys (NSYS=1).
set -u
host=$(hostname)
here=${BASH_SOURCE[0]%/*}
record=()
if [ "${NSYS:-0}" = 1 ] && [ "$host" = "$MASTER_ADDR" ]; then
  if [ "${2:-}" = train ]; then set -- "$@" --profile_mode; fi # names the phases; other commands do not know it
  record=("$NSYS_BIN" profile --trace="$NSYS_TRACE" --sample="$NSYS_SAMPLE" --cpuctxsw=none --cuda-event-trace="$NSYS_CUDA_EVENT_TRACE"
    --trace-fork-before-exec=true --force-overwrite="$NSYS_FORCE_OVERWRITE" --output "$RUN_DIR/profiles/nsys_${SLURM_JOB_ID}_$host")
fi
if [ -n "${NODE_WORKERS:-}" ]; then exec ${record[@]+"${record[@]}"} "$here/node.sh" "$@"; fi
. "$here/logs.sh"
keep_logs "$host" "$SLURM_LOCALID"
exec ${record[@]+"${record[@]}"} "$@"
