#!/usr/bin/env bash
# guard.sh: a task on the last node of a job with --no-kill. When such a job loses its first node, Slurm leaves it running, although the
# batch script is gone with the node: this task queues it again, and the next attempt resumes.
set -u
while sleep 10; do
  job=$(scontrol -o show job "$SLURM_JOB_ID") || continue
  [[ $job =~ \ NodeList=([^ ]+)\ BatchHost=([^ ]+) ]] || continue
  nodes=$(scontrol show hostnames "${BASH_REMATCH[1]}") || continue
  grep -qx -- "${BASH_REMATCH[2]}" <<<"$nodes" || scontrol requeue "$SLURM_JOB_ID"
done
