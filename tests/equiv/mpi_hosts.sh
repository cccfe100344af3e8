#!/usr/bin/env bash
# Two hosts x 2 ranks, each host with its own address, name and /dev/shm (namespaces of tests/support/hosts; needs root):
# collectives and training give the bits of one worker, the files name both hosts, a host that dies ends the run.
. "$(dirname "$0")/../support/lib.sh"
. "$(dirname "$0")/../support/mpi.sh"
[ "$(id -u)" = 0 ] || skip "making hosts needs root"
tool=("$LS_SOURCE/tests/support/hosts" "$SCRATCH/net")
at_end() { "${tool[@]}" down >/dev/null 2>&1; }
"${tool[@]}" up 2 --rate 1gbit --ttl 600 >"$SCRATCH/up" 2>&1 || skip "no hosts: $(tail -1 "$SCRATCH/up")"
hosts() { timeout -k 5 120 "${tool[@]}" mpirun "$@"; }

hosts -np 4 "$LS_BUILD/mpi_tool" >"$SCRATCH/out" 2>&1 || bad "collectives: $(grep mpi_tool "$SCRATCH/out" | head -3)"
grep -q "4 ranks on 2 hosts" "$SCRATCH/out" || bad "not on two hosts: $(head -3 "$SCRATCH/out")"
hosts -np 4 --map-by node "$LS_BUILD/mpi_tool" >"$SCRATCH/out" 2>&1 || bad "ranks dealt round: $(grep mpi_tool "$SCRATCH/out" | head -3)"

mkdir -p "$SCRATCH/d" && tokens "$SCRATCH/d/train.bin" 20000 && tokens "$SCRATCH/d/val.bin" 2000 2
base=(train --data "$SCRATCH/d" --model tiny --seq_length 64 --micro_batch_size_per_gpu 1 --global_batch_size 8 --dropout 0.1 --epochs 2
      --lr 1e-3)
steps=(--max_steps 12)
"$LOCKSTEP" "${base[@]}" "${steps[@]}" --checkpoint_path "$SCRATCH/one" >"$SCRATCH/one.log" 2>&1 || bad "one worker: $(tail -3 "$SCRATCH/one.log")"
for s in ddp dp zero3; do
  hosts -np 4 "$LOCKSTEP" "${base[@]}" "${steps[@]}" --strategy $s --checkpoint_path "$SCRATCH/$s" >"$SCRATCH/log" 2>&1 || bad "$s: $(tail -3 "$SCRATCH/log")"
  same "$SCRATCH/one/epoch-1/model.safetensors" "$SCRATCH/$s/epoch-1/model.safetensors"
done
grep -q '"host": "n2"' "$SCRATCH/ddp/launcher_metadata.json" || bad "the second host is not named"

# a restart from the copies in memory, each in the /dev/shm of its host
LOCKSTEP_FAULT="kind=kill,rank=3,step=11" timeout -k 5 100 "$LOCKSTEP" launch --max_restarts 1 -- "${tool[@]}" mpirun -np 4 "$LOCKSTEP" "${base[@]}" "${steps[@]}" \
  --strategy zero2 --save_memory_every 3 --checkpoint_path "$SCRATCH/memory" >"$SCRATCH/log" 2>&1 || bad "memory: $(tail -3 "$SCRATCH/log")"
grep -q "^resumed from /dev/shm/lockstep-.*/step-9$" "$SCRATCH/log" || bad "memory: $(grep resumed "$SCRATCH/log")"
same "$SCRATCH/one/epoch-1/model.safetensors" "$SCRATCH/memory/epoch-1/model.safetensors"

hosts -np 4 "$LOCKSTEP" "${base[@]}" --epochs 200 --max_steps 100000 --comm_timeout 400 --checkpoint_path "$SCRATCH/cut" >"$SCRATCH/cut.log" 2>&1 &
job=$!
await $job grep -q "step 10/" "$SCRATCH/cut.log" || bad "no step 10: $(tail -3 "$SCRATCH/cut.log")"
"${tool[@]}" kill n2 >/dev/null 2>&1
begin=$(date +%s); wait $job && bad "a power cut goes unnoticed"
took=$(($(date +%s) - begin))
[ $took -lt 90 ] || bad "a power cut: the others took $took s"
gone() { ! pgrep -f "^$LOCKSTEP .*checkpoint_path $SCRATCH/cut" >/dev/null; }
await $$ gone || bad "a worker outlived the run"
done_tests
