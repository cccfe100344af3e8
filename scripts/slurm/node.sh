#!/usr/bin/env bash
# node.sh COMMAND...: the NODE_WORKERS workers of this node as children of this process, so that one nsys records all of them, as the scaling study does with
# torchrun. The workers of all nodes join over TCP: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, LOCKSTEP_TOKEN. Nodes are numbered in the
# order of SLURM_HOSTS, whose first is the master. The exit code is the largest one of the workers.
set -u
. "${BASH_SOURCE[0]%/*}/logs.sh"
host=$(hostname)
node=$(grep -nx -m 1 -- "$host" <<<"$SLURM_HOSTS") || { echo "slurm: $host is not one of the hosts of the job: ${SLURM_HOSTS//$'\n'/ }" >&2; exit 1; }
first=$(((${node%%:*} - 1) * NODE_WORKERS))
export WORLD_SIZE=$((SLURM_JOB_NUM_NODES * NODE_WORKERS)) LOCAL_WORLD_SIZE=$NODE_WORKERS

pids=()
trap 'kill -TERM "${pids[@]}" 2>/dev/null' TERM
for ((k = 0; k < NODE_WORKERS; k++)); do
  (
    trap - TERM
    export RANK=$((first + k)) LOCAL_RANK=$k SLURM_LOCALID=$k SLURM_PROCID=$((first + k))
    keep_logs "$host" "$k"
    exec "$@"
  ) &
  pids+=($!)
done

code=0
for pid in "${pids[@]}"; do
  # a signal ends a wait; only a wait after the end of the worker has its code
  while kill -0 "$pid" 2>/dev/null; do wait "$pid"; done
  wait "$pid"
  got=$?
  [ "$got" -le "$code" ] || code=$got
done
exit "$code"
