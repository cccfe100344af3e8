#!/usr/bin/env bash
# --audit: it changes no bit; a flipped bit ends the run before the update and names the rank; replicas that differ are not saved.
. "$(dirname "$0")/../support/lib.sh"
d=$SCRATCH/d
mkdir -p "$d" && tokens "$d/train.bin" 3000 && tokens "$d/val.bin" 300 2
base=(train --data "$d" --model tiny --num_layers 2 --num_heads 2 --embedding_size 32 --seq_length 16 --micro_batch_size_per_gpu 1 --global_batch_size 8
      --dropout 0.1 --max_val_steps 0 --max_steps 3)
run() { local name=$1; shift; timeout -k 5 60 "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/$name" "$@" >"$SCRATCH/$name.log" 2>&1; }
all=(--audit 1 --audit_depth step)

run one || bad "one: $(tail -n 4 "$SCRATCH/one.log")"
clean() { # NAME options: the bits of one worker, and one good audit per step
  local name=$1
  run "$@" "${all[@]}" || { bad "$name: $(tail -n 4 "$SCRATCH/$name.log")"; return; }
  same "$SCRATCH/one/epoch-1/model.safetensors" "$SCRATCH/$name/epoch-1/model.safetensors"
  same "$SCRATCH/one/epoch-1/optimizer.safetensors" "$SCRATCH/$name/epoch-1/optimizer.safetensors"
  [ "$(grep -c '"event": "audit".*"result": "ok"' "$SCRATCH/$name/events.jsonl")" = 3 ] || bad "$name: not 3 audits"
}
clean ddp -n 4 --strategy ddp
clean pp -n 2 --pp 2 --schedule zb
# shards of an odd vocabulary have other places for the tensors that all of them have
run odd -n 4 --tp 2 --strategy zero3 --vocab_size 257 "${all[@]}" || bad "odd: $(tail -n 4 "$SCRATCH/odd.log")"
[ "${LS_TEST_ALL:-0}" = 1 ] && for s in dp zero1 zero2 zero3; do clean "all-$s" -n 4 --strategy $s; done

# flip TENSOR RANK UNIT WORD options: the audit of step 2 names the rank
n_flip=0
flip() {
  local tensor=$1 rank=$2 unit=$3 words=$4 name=flip-$((++n_flip)) code
  shift 4
  LOCKSTEP_FAULT="kind=flip,tensor=$tensor,rank=$rank,step=2,unit=$unit,element=70,bit=15" run $name "$@"
  code=$?
  [ $code = 4 ] || bad "$* $tensor: exit code $code: $(tail -n 4 "$SCRATCH/$name.log")"
  grep -q "audit of step 2: rank $rank (host .*$words" "$SCRATCH/$name.log" || bad "$* $tensor: $(grep audit "$SCRATCH/$name.log" | head -c 300)"
  grep -q '"step": 2, "result": "mismatch", .*"rank": '"$rank," "$SCRATCH/$name/events.jsonl" || bad "$* $tensor: no event"
  [ ! -e "$SCRATCH/$name/epoch-1" ] || bad "$* $tensor: saved"
}
flip grad 2 1 "a gradient of block 0" -n 4 --strategy ddp "${all[@]}"
flip act 1 2 "activations of block 1" -n 2 --strategy ddp "${all[@]}"
flip moment 1 1 "optimizer state of block 0 that changed" -n 2 --strategy zero1 "${all[@]}"
flip param 1 2 "parameters of block 1 that changed" -n 2 --strategy zero3 "${all[@]}"
flip grad 1 0 "a gradient of embed" -n 2 --strategy zero3 "${all[@]}"
flip act 1 2 "activations of block 1" -n 2 --pp 2 "${all[@]}"
flip grad 0 1 "a gradient of block 0" -n 2 --pp 2 "${all[@]}"
flip act 1 1 "activations of block 0" -n 2 --tp 2 "${all[@]}"
flip act 1 1 "activations of block 0" -n 2 --tp 2 --sequence_parallel "${all[@]}"
flip grad 0 3 "a gradient of head" "${all[@]}"
flip param 2 1 "parameters of block 0" -n 4 --strategy ddp --audit 2
# sums of gradients: after the reduction, and (phase=backward) of the first micro-batches
sum() { local rank=$1 unit=$2 name=$3; shift 3; flip "$tensor" "$rank" "$unit" "a sum of gradients of $name that changed" "$@" --audit 1; }
for tensor in sum sum,phase=backward; do
  sum 0 1 "block 0"
  sum 1 0 embed -n 2 --strategy zero2
  sum 1 2 "block 1" -n 2 --pp 2
  sum 1 3 head -n 2 --strategy ddp
  [ "${LS_TEST_ALL:-0}" = 1 ] || continue
  sum 0 3 head -n 2 --strategy dp
  sum 1 3 head -n 4 --strategy zero1
  sum 1 1 "block 0" -n 2 --strategy zero3
  sum 0 0 embed -n 4 --pp 2 --strategy zero2
  sum 0 1 "block 0" -n 2 --pp 2 --schedule zb
  sum 1 2 "block 1" -n 2 --tp 2
done
# one that makes the norm infinite: the memory explains it
LOCKSTEP_FAULT="kind=flip,tensor=sum,step=2,unit=1,element=70,bit=30" run huge -n 2 --strategy zero2 --audit 1
[ $? = 4 ] && grep -q "audit of step 2: rank 0 .*a sum of gradients of block 0" "$SCRATCH/huge.log" || bad "huge: $(tail -n 2 "$SCRATCH/huge.log")"

# between two audits: replicas stay different, and four can tell which one
LOCKSTEP_FAULT="kind=flip,tensor=param,rank=1,step=1,unit=1,element=70,bit=15" run late -n 4 --audit 3
grep -q "audit of step 3: rank 1 (.*differ from all other copies of them" "$SCRATCH/late.log" || bad "late: $(grep audit "$SCRATCH/late.log")"
LOCKSTEP_FAULT="kind=flip,tensor=param,rank=1,step=1,unit=1,element=70,bit=15" run tie -n 2 --audit 3
grep -q "audit of step 3: copies of the same state have different bits, and no majority" "$SCRATCH/tie.log" || bad "tie: $(grep audit "$SCRATCH/tie.log")"
grep -q '"mismatch".*"rank": null' "$SCRATCH/tie/events.jsonl" || bad "tie: $(grep mismatch "$SCRATCH/tie/events.jsonl")"
# a norm is on every tensor-parallel shard, and its error reaches the same shard of all replicas: three of them name the rank, one shows that it differs
for n in 6 2; do
  LOCKSTEP_FAULT="kind=flip,tensor=param,rank=1,step=1,unit=1,element=3,bit=22" run copy$n -n $n --tp 2 --audit 3 --global_batch_size 6
  case $n in 6) words="rank 1 (.*parameters of block 0 that differ from all other copies" ;; *) words="copies of the same state have different bits" ;; esac
  grep -q "audit of step 3: $words" "$SCRATCH/copy$n.log" || bad "copy$n: $(grep audit "$SCRATCH/copy$n.log")"
done
# such a state is not saved
LOCKSTEP_FAULT="kind=flip,tensor=param,rank=1,step=1,unit=1,element=70,bit=15" run save -n 4 --audit 100 --save_every 2
[ $? = 4 ] && [ ! -e "$SCRATCH/save/step-2" ] && grep -q "audit before the checkpoint of step 2: .*; it was not saved" "$SCRATCH/save.log" || bad "saved: $(tail -n 4 "$SCRATCH/save.log")"

# a restart repeats the step without the error, which happens once: the bits of a run without it
for tensor in grad sum; do
  rm -rf "$SCRATCH/again"
  LOCKSTEP_FAULT="kind=flip,tensor=$tensor,rank=1,step=3,unit=1,element=70,bit=15" run again -n 2 "${all[@]}" --save_every 1 --max_restarts 1 ||
    bad "again, $tensor: $(tail -n 3 "$SCRATCH/again.log")"
  same "$SCRATCH/one/epoch-1/model.safetensors" "$SCRATCH/again/epoch-1/model.safetensors"
  grep -q '"event": "failure", .*"rank": 1, .*"cause": "corruption"' "$SCRATCH/again/events.jsonl" || bad "again, $tensor: no failure event"
  grep -q '"event": "restart".*"from_step": 2,' "$SCRATCH/again/events.jsonl" || bad "again, $tensor: $(grep restart "$SCRATCH/again/events.jsonl")"
done

# the checkpoint of the step before is right, and is used: nothing but step 3 is repeated; with --save_async it is completed first
for how in "" "--save_every 2 --save_async" "--save_memory_every 1 --save_every 100"; do
  rm -rf "$SCRATCH/kept"
  LOCKSTEP_FAULT="kind=slow,rank=1,step=2,phase=save,path=step-2,seconds=0.3;kind=flip,tensor=grad,rank=1,step=3,unit=1,element=70,bit=15" \
    run kept -n 2 "${all[@]}" --save_every 1 $how --max_restarts 1 || bad "kept $how: $(tail -n 3 "$SCRATCH/kept.log")"
  same "$SCRATCH/one/epoch-1/model.safetensors" "$SCRATCH/kept/epoch-1/model.safetensors"
  grep -q '"event": "restart".*"from_step": 2,' "$SCRATCH/kept/events.jsonl" || bad "kept $how: $(grep restart "$SCRATCH/kept/events.jsonl")"
done

# a bit that changes after the comparison, while the checkpoint is written, to the disk or to memory: it is not published
flipped="kind=flip,tensor=param,rank=0,step=3,unit=1,element=70,bit=15"
wait_for="kind=slow,rank=0,step=2,phase=save,path=step-2,seconds=0.5"
for how in "--save_every 1 --keep_last 1" "--save_every 2 --save_async" "--save_memory_every 2"; do
  LOCKSTEP_FAULT="$wait_for;$flipped" run window -n 4 --audit 100 $how --max_restarts 1 || bad "$how: $(tail -n 3 "$SCRATCH/window.log")"
  same "$SCRATCH/one/epoch-1/model.safetensors" "$SCRATCH/window/epoch-1/model.safetensors"
  grep -q "and the checkpoint before it was discarded" "$SCRATCH/window.log" || bad "$how: $(grep "^lockstep" "$SCRATCH/window.log")"
done
LOCKSTEP_FAULT="$wait_for;$flipped" run alone -n 4 --audit 100 --save_every 2
[ $? = 4 ] && ! compgen -G "$SCRATCH/alone/*step-2*" >/dev/null || bad "alone: $(ls -a "$SCRATCH/alone")"
grep -q '"event": "checkpoint", "step": 2' "$SCRATCH/alone/events.jsonl" && bad "alone: an event of a checkpoint that was not published"
# nor if the run is killed before the comparison: one worker, whose thread needs no other; several; a copy in memory, alone and beside a write
for how in "-n 1 --save_every 1" "-n 4 --save_every 1" "-n 1 --save_every 2 --save_async" "-n 2 --save_memory_every 1" "-n 1 --save_memory_every 1" \
           "-n 2 --save_every 1 --save_memory_every 1" "-n 1 --save_every 1 --save_memory_every 1"; do
  rm -rf "$SCRATCH/killed"
  LOCKSTEP_FAULT="$wait_for;$flipped;kind=kill,rank=0,step=3,phase=update" run killed $how --audit 100 --max_restarts 1 || bad "killed $how: $(tail -n 3 "$SCRATCH/killed.log")"
  same "$SCRATCH/one/epoch-1/model.safetensors" "$SCRATCH/killed/epoch-1/model.safetensors"
  grep -q '"event": "restart".*"from_step": [01],' "$SCRATCH/killed/events.jsonl" || bad "killed $how: $(grep restart "$SCRATCH/killed/events.jsonl")"
done
# the checkpoint that an attempt began from is not suspect
LOCKSTEP_FAULT="kind=kill,rank=0,step=4;$flipped,attempt=2" run began -n 4 --audit 1 --save_every 2 --max_steps 4 --max_restarts 2 || bad "began: $(tail -n 3 "$SCRATCH/began.log")"
[ "$(grep -c '"event": "restart".*"from_step": 2,' "$SCRATCH/began/events.jsonl")" = 2 ] || bad "began: $(grep restart "$SCRATCH/began/events.jsonl")"
# numbers that are not finite because of a bit: the memory explains them
LOCKSTEP_FAULT="${flipped/bit=15/bit=30}" run nan --audit 3
[ $? = 4 ] && grep -q "rank 0 .*parameters of block 0 that changed in memory" "$SCRATCH/nan.log" || bad "nan: $(tail -n 2 "$SCRATCH/nan.log")"

# also in a step that is not audited, where there are replicas: the run is restarted
LOCKSTEP_FAULT="kind=flip,tensor=param,rank=1,step=2,unit=1,element=40,bit=30" run infinite -n 4 --audit 3 --max_restarts 1 || bad "infinite: $(tail -n 2 "$SCRATCH/infinite.log")"
grep -q "audit of step 2: rank 1 (.*differ from all other copies of them" "$SCRATCH/infinite.log" || bad "infinite: $(grep lockstep: "$SCRATCH/infinite.log")"
same "$SCRATCH/one/epoch-1/model.safetensors" "$SCRATCH/infinite/epoch-1/model.safetensors"

expect 2 "audit_depth needs --audit" "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/no" --audit_depth step
for n in 1 2; do expect 2 "compares bits" "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/no" -n $n --audit 1 --no_deterministic; done

# the emulated device hashes its own memory
export LS_PLUGIN_DIR=${LS_BUILD:-$LS_SOURCE/build}/emu LS_GEMM_TUNE=0 XDG_CACHE_HOME=$SCRATCH/cache
if [ -f "$LS_PLUGIN_DIR/lockstep_cuda.so" ]; then
  gpu=(--device cuda --precision bf16 --num_layers 1 --max_steps 2)
  run gpu "${gpu[@]}" -n 2 && run gpu-audit "${gpu[@]}" -n 2 --audit 1 || bad "gpu: $(tail -n 4 "$SCRATCH"/gpu*.log)"
  same "$SCRATCH/gpu/epoch-1/model.safetensors" "$SCRATCH/gpu-audit/epoch-1/model.safetensors"
  flip moment 1 1 "GPU .*optimizer state of block 0 that changed" -n 2 "${gpu[@]}" --audit 1
  flip param 0 1 "GPU .*parameters of block 0 that changed" "${gpu[@]}" --audit 1
  flip sum 1 2 "GPU .*a sum of gradients of head that changed" -n 2 --strategy zero2 "${gpu[@]}" --audit 1
  LOCKSTEP_FAULT="kind=flip,tensor=sum,phase=backward" run gpu-tree "${gpu[@]}"
  grep -q "on a GPU, flips are possible in" "$SCRATCH/gpu-tree.log" || bad "gpu-tree: $(tail -n 2 "$SCRATCH/gpu-tree.log")"
else
  echo "no emulated device: not tested on it"
fi
done_tests
