# shellcheck shell=bash
# keep_logs HOST LOCAL_RANK: a copy of what this worker prints, in the folders of torchrun.
keep_logs() {
  [ "${TORCHRUN_LOGS:-1}" = 1 ] || return 0
  local logs=$RUN_DIR/torchrun_logs/${SLURM_JOB_ID}_$1/attempt_${SLURM_RESTART_COUNT:-0}/$2
  mkdir -p "$logs"
  # the copies must outlive a SIGTERM that is meant for the worker: its last words are the ones that count
  exec > >(trap '' TERM INT; exec tee -a "$logs/stdout.log") 2> >(trap '' TERM INT; exec tee -a "$logs/stderr.log" >&2)
}
