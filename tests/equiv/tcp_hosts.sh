#!/usr/bin/env bash
# lockstep launch on two hosts x 2 workers with their own addresses, names, processes and /dev/shm (namespaces of tests/support/hosts; root, or a
# user who may create namespaces): the bits of one worker over a link of 1 Gbit/s; a link that is cut and a host that loses power end the run.
case ${LS_IN_NAMESPACE:-} in
'') if [ "$(id -u)" != 0 ]; then
    why=$(unshare --user --map-root-user --mount --pid --fork --mount-proc true 2>&1) ||
      { echo "SKIPPED: neither root nor allowed to create namespaces: $(echo "$why" | tail -1)"; exit 77; }
    LS_IN_NAMESPACE=1 exec unshare --user --map-root-user --mount --pid --fork --mount-proc bash "$0"
  fi ;;
esac
. "$(dirname "$0")/../support/lib.sh"
tool=("$LS_SOURCE/tests/support/hosts" "$SCRATCH/net")
at_end() { "${tool[@]}" down >/dev/null 2>&1; }
"${tool[@]}" up 2 --rate 1gbit --ttl 600 >"$SCRATCH/up" 2>&1 || skip "no hosts: $(tail -1 "$SCRATCH/up")"
launch() { timeout -k 5 120 "$LOCKSTEP" launch --hosts n1,n2 -n 4 --rsh "${tool[*]} rsh" -- "$@"; }

mkdir -p "$SCRATCH/d" && tokens "$SCRATCH/d/train.bin" 20000
base=(train --data "$SCRATCH/d" --model tiny --seq_length 32 --micro_batch_size_per_gpu 1 --global_batch_size 4 --lr 1e-3 --threads 1)
"$LOCKSTEP" "${base[@]}" --max_steps 3 --checkpoint_path "$SCRATCH/one" >"$SCRATCH/log" 2>&1 || bad "one worker: $(tail -3 "$SCRATCH/log")"
for s in ddp zero3; do
  launch "${base[@]}" --max_steps 3 --strategy $s --checkpoint_path "$SCRATCH/$s" >"$SCRATCH/log" 2>&1 || bad "$s: $(tail -3 "$SCRATCH/log")"
  same "$SCRATCH/one/epoch-1/model.safetensors" "$SCRATCH/$s/epoch-1/model.safetensors"
done
grep -q '"host": "n2"' "$SCRATCH/ddp/launcher_metadata.json" || bad "the second host is not named"

# fault NAME COMMAND...: the run ends with exit code 4 within the limit, and names a rank of the other host
fault() {
  local name=$1 job took
  shift
  launch "${base[@]}" --epochs 200 --max_steps 100000 --comm_timeout 3 --checkpoint_path "$SCRATCH/$name" >"$SCRATCH/$name.log" 2>&1 &
  job=$!
  await $job grep -qs "step 10/" "$SCRATCH/$name.log" || bad "$name: no step 10: $(tail -3 "$SCRATCH/$name.log")"
  "${tool[@]}" "$@" >/dev/null 2>&1
  SECONDS=0
  wait $job
  [ $? = 4 ] || bad "$name: not exit code 4: $(tail -3 "$SCRATCH/$name.log")"
  took=$SECONDS
  [ $took -lt 60 ] || bad "$name: the others took $took s"
  grep -qE "look at rank|connection with rank|does not answer" "$SCRATCH/$name.log" || bad "$name: nobody is named: $(tail -3 "$SCRATCH/$name.log")"
  gone() { ! pgrep -f "^$LOCKSTEP train .*checkpoint_path $SCRATCH/$name" >/dev/null; }
  await $$ gone || bad "$name: a worker outlived the run"
}
fault cut on n2 ip link set eth0 down
"${tool[@]}" on n2 ip link set eth0 up >/dev/null 2>&1
fault power kill n2
done_tests
