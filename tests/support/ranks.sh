# shellcheck shell=bash
# ranks.sh - for test scripts that start workers with the variables of torchrun, on hosts that this machine pretends to be.
LS_BUILD=${LS_BUILD:-$(dirname "$LOCKSTEP")}
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1] % 20000 + 10000)'; }

# ranks NAME "L0 L1 ..." COMMAND...: L0 workers on the first host, L1 on the next …; output in $SCRATCH/NAME.RANK, process id in NAME.RANK.pid,
# exit code in NAME.RANK.code. The exit code is the largest one.
ranks() {
  local name=$1 layout=$2 size=0 rank=0 host=0 l k jobs=() worst=0 port=${PORT:-$(free_port)}
  shift 2
  for l in $layout; do size=$((size + l)); done
  for l in $layout; do
    for ((k = 0; k < l; k++)); do
      rm -f "$SCRATCH/$name.$rank".*
      (
        RANK=$rank WORLD_SIZE=$size LOCAL_RANK=$k LOCAL_WORLD_SIZE=$l MASTER_ADDR=127.0.0.1 MASTER_PORT=$port LOCKSTEP_HOST_ID=host$host \
          LOCKSTEP_TOKEN=$$.$name timeout -k 5 120 sh -c 'echo $$ >"$0"; exec "$@"' "$SCRATCH/$name.$rank.pid" "$@" >"$SCRATCH/$name.$rank" 2>&1
        echo $? >"$SCRATCH/$name.$rank.code"
      ) &
      jobs+=($!)
      rank=$((rank + 1))
    done
    host=$((host + 1))
  done
  wait "${jobs[@]}"
  for ((k = 0; k < size; k++)); do l=$(cat "$SCRATCH/$name.$k.code"); [ "$l" -le "$worst" ] || worst=$l; done
  return "$worst"
}
