#!/usr/bin/env bash
# task.sh COMMAND...: one task of a job step: its output also into torchrun_logs/ (TORCHRUN_LOGS=1), under nsys on node 0 (NSYS=1).
set -u
host=$(hostname)
if [ "${TORCHRUN_LOGS:-1}" = 1 ]; then
  logs=$RUN_DIR/torchrun_logs/${SLURM_JOB_ID}_$host/attempt_${SLURM_RESTART_COUNT:-0}/$SLURM_LOCALID
  mkdir -p "$logs"
  # the copies must outlive a SIGTERM that is meant for the worker: its last words are the ones that count
  exec > >(trap '' TERM INT; exec tee -a "$logs/stdout.log") 2> >(trap '' TERM INT; exec tee -a "$logs/stderr.log" >&2)
fi
if [ "${NSYS:-0}" = 1 ] && [ "$SLURM_NODEID" = 0 ]; then
  report=$RUN_DIR/profiles/nsys_${SLURM_JOB_ID}_$host
  [ "$SLURM_LOCALID" = 0 ] || report=${report}_$SLURM_LOCALID
  if [ "${2:-}" = train ]; then set -- "$@" --profile_mode; fi # names the phases; other commands do not know it
  exec "$NSYS_BIN" profile --trace="$NSYS_TRACE" --sample="$NSYS_SAMPLE" --cpuctxsw=none --cuda-event-trace="$NSYS_CUDA_EVENT_TRACE" \
    --trace-fork-before-exec=true --force-overwrite="$NSYS_FORCE_OVERWRITE" --output "$report" "$@"
fi
exec "$@"
