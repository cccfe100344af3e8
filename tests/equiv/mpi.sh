#!/usr/bin/env bash
# Under mpirun: every collective equals the tree computed serially, with one host and with several (LS_MPI_HOSTS divides this machine);
# training gives the bits of one worker; a killed rank ends the run in seconds with exit code 4; a hang names the rank and shows stacks;
# variables of torchrun work on one host; what cannot work is refused with a message.
. "$(dirname "$0")/../support/lib.sh"
. "$(dirname "$0")/../support/mpi.sh"
command -v pgrep >/dev/null || skip "pgrep is missing (package procps)"

sizes=5; layouts="3:2,1 4:1,2,1"
[ "${LS_TEST_ALL:-0}" = 1 ] && sizes="1 2 3 4 5 8" layouts="2:1 3:1 3:2,1 4:2 4:1 4:1,2,1 5:2,1 5:1 6:2 8:2 8:4 8:3 8:1"
for n in $sizes; do
  mpi $n "$LS_BUILD/mpi_tool" >"$SCRATCH/out" 2>&1 || bad "collectives on $n: $(grep mpi_tool "$SCRATCH/out" | head -3)"
done
for l in $layouts; do
  mpi "${l%%:*}" -x LS_MPI_HOSTS="${l#*:}" "$LS_BUILD/mpi_tool" >"$SCRATCH/out" 2>&1 ||
    bad "collectives on ${l%%:*} ranks, hosts of ${l#*:}: $(grep mpi_tool "$SCRATCH/out" | head -3)"
done
mpi 3 -x LS_MPI_HOSTS=1 "$LS_BUILD/mpi_tool" 700001 >"$SCRATCH/out" 2>&1 || bad "several chunks: $(grep mpi_tool "$SCRATCH/out" | head -3)"

mkdir -p "$SCRATCH/d" && tokens "$SCRATCH/d/train.bin" 20000 && tokens "$SCRATCH/d/val.bin" 2000 2
base=(train --data "$SCRATCH/d" --model tiny --num_layers 2 --seq_length 64 --micro_batch_size_per_gpu 1 --global_batch_size 8 --dropout 0.1 --epochs 2
      --lr 1e-3)
steps=(--max_steps 12)
"$LOCKSTEP" "${base[@]}" "${steps[@]}" --checkpoint_path "$SCRATCH/one" >"$SCRATCH/one.log" 2>&1 || bad "one worker: $(tail -3 "$SCRATCH/one.log")"
trainings=("ddp 4 2" "zero2 2 0" "zero3 4 2")
[ "${LS_TEST_ALL:-0}" = 1 ] && trainings+=("dp 2 1" "ddp 2 0" "dp 4 2" "zero2 2 1")
for t in "${trainings[@]}"; do
  set -- $t
  env=(); [ "$3" = 0 ] || env=(-x LS_MPI_HOSTS="$3")
  mpi "$2" "${env[@]}" "$LOCKSTEP" "${base[@]}" "${steps[@]}" --strategy "$1" --checkpoint_path "$SCRATCH/$1$2" >"$SCRATCH/log" 2>&1 ||
    bad "$t: $(tail -3 "$SCRATCH/log")"
  same "$SCRATCH/one/epoch-1/model.safetensors" "$SCRATCH/$1$2/epoch-1/model.safetensors"
done
python3 - "$SCRATCH/ddp4" <<'PY' || bad "the files of 4 workers on 2 hosts have other numbers"
import json, sys
l = json.load(open(sys.argv[1] + "/launcher_metadata.json"))
assert l["world_size"] == 4 and l["lockstep"]["backend"] == "mpi" and l["lockstep"]["hosts"] == 2, l
assert l["lockstep"]["started_by"].startswith("mpirun"), l
assert [w["local_rank"] for w in l["lockstep"]["workers"]] == [0, 1, 0, 1], l
# 2 hosts x 2 workers: each of them sends 2 (H-1)/H of its half of the buffers to the other host
c = json.load(open(sys.argv[1] + "/training_metrics.json"))["lockstep"]["comm"]["all_reduce"]
assert abs(c["bytes_to_other_hosts"] - 4 * c["elements"] / 2) <= 4 * c["calls"], c
PY

# kill -9 of a rank: the other ranks, on its host and on another one, end by themselves, with 4. The shell prevents mpirun from ending them first.
cat >"$SCRATCH/keep" <<'SH'
trap '' TERM
"$@"
echo $? >"$SCRATCH/code.$OMPI_COMM_WORLD_RANK"
i=0 # mpirun ends the others when the first has ended: wait until all have ended
while [ "$(ls "$SCRATCH"/code.* | wc -l)" -lt 4 ] && [ $i -lt 600 ]; do sleep 0.1; i=$((i + 1)); done
SH
export SCRATCH
divisions=2; [ "${LS_TEST_ALL:-0}" = 1 ] && divisions="4 2"
for hosts in $divisions; do
  rm -f "$SCRATCH"/code.*
  mpi 4 -x LS_MPI_HOSTS=$hosts --mca orte_abort_on_non_zero_status 0 sh "$SCRATCH/keep" "$LOCKSTEP" "${base[@]}" --epochs 200 --max_steps 100000 \
    --comm_timeout 400 --checkpoint_path "$SCRATCH/killed" >"$SCRATCH/killed.log" 2>&1 &
  job=$!
  await $job grep -q "step 10/" "$SCRATCH/killed.log" || { bad "hosts of $hosts: no step 10: $(tail -3 "$SCRATCH/killed.log")"; continue; }
  victim=$(pgrep -f "^$LOCKSTEP .*checkpoint_path $SCRATCH/killed" | shuf -n 1)
  kill -9 "$victim"
  begin=$(date +%s)
  wait $job
  took=$(($(date +%s) - begin))
  [ $took -lt 60 ] || bad "kill -9, hosts of $hosts: the others took $took s"
  [ "$(cat "$SCRATCH"/code.* | sort | tr '\n' ' ')" = "137 4 4 4 " ] || bad "kill -9, hosts of $hosts: exit codes $(cat "$SCRATCH"/code.* | tr '\n' ' ')"
  grep -q ") exited" "$SCRATCH/killed.log" || bad "kill -9: no rank reports the killed one: $(tail -3 "$SCRATCH/killed.log")"
  pgrep -f "checkpoint_path $SCRATCH/killed" >/dev/null && bad "a worker outlived the run"
done

# a hang: the rank, the place, the duration, and the stacks
mpi 4 -x LS_MPI_HOSTS=2 "$LS_BUILD/mpi_tool" late >"$SCRATCH/late" 2>&1 && bad "a hang is not noticed"
grep -q "look at rank 3" "$SCRATCH/late" || bad "the hang's table does not name rank 3: $(head -20 "$SCRATCH/late")"
grep -q "stack trace of rank 3" "$SCRATCH/late" || bad "the stack of the rank that is late is missing: $(head -20 "$SCRATCH/late")"

# variables of torchrun
torch() { # NAME WORLD MORE...: one process per rank
  local name=$1 n=$2 r port jobs=() rc=0
  shift 2
  port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  for r in $(seq $((n - 1)) -1 0); do
    RANK=$r WORLD_SIZE=$n LOCAL_RANK=$r LOCAL_WORLD_SIZE=$n MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
      timeout -k 5 120 "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/$name" "$@" >"$SCRATCH/$name.$r" 2>&1 &
    jobs+=($!)
  done
  for r in "${jobs[@]}"; do wait "$r" || rc=$?; done
  return $rc
}
torch torch 4 "${steps[@]}" || bad "torchrun's variables: $(tail -2 "$SCRATCH"/torch.*)"
same "$SCRATCH/one/epoch-1/model.safetensors" "$SCRATCH/torch/epoch-1/model.safetensors"
( torch gone 2 --epochs 200 --max_steps 100000 --comm_timeout 400; echo $? >"$SCRATCH/gone.code" ) &
job=$!
await $job grep -qs "step 10/" "$SCRATCH/gone.0" || bad "torchrun's variables: no step 10: $(tail -3 "$SCRATCH/gone.0")"
kill -9 "$(pgrep -f "^$LOCKSTEP .*checkpoint_path $SCRATCH/gone" | shuf -n 1)"
begin=$(date +%s); wait $job
[ $(($(date +%s) - begin)) -lt 60 ] || bad "torchrun's variables: the other worker did not notice"
grep -q ") exited" "$SCRATCH"/gone.[01] || bad "variables of torchrun: no rank reports the killed one"

# refusals
expect 2 "leave -n out" mpi 2 "$LOCKSTEP" "${base[@]}" -n 3 --checkpoint_path "$SCRATCH/x"
expect 2 "mpirun" "$LOCKSTEP" "${base[@]}" -n 2 --comm mpi --checkpoint_path "$SCRATCH/x"
expect 2 "does not exist" mpi 2 -x LS_PLUGIN_DIR="$SCRATCH" "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/x"
expect 2 "srun --mpi=pmix" env SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/x"
done_tests
