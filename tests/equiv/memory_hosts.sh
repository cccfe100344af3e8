#!/usr/bin/env bash
# Copies in the memory of several hosts (--save_memory_every): a run on two hosts that loses a worker, a host or a copy continues from the newest
# copy that a host has, without a checkpoint on the disk, and ends with the bits of one worker. Hosts are pretended by a stand-in for ssh.
. "$(dirname "$0")/../support/lib.sh"
. "$(dirname "$0")/../support/ranks.sh"
cd "$SCRATCH" || exit 1
# After its first start a host is lost (lose.HOST), or its copy in memory is damaged (bad.HOST) or gone (none.HOST). The names of copies end with a
# number of the host: that of host a is in the file number.
cat >rsh <<SH
#!/bin/bash
cd "$SCRATCH" || exit 1
export LOCKSTEP_HOST_ID=\$1
if [ -e started.\$1 ]; then
  for owner in \$(grep -lx "$SCRATCH/\$(cat now)" /dev/shm/lockstep-*/*/owner); do
    dir=\${owner%/owner}
    case \$1\$dir in a*-\$(cat number)) ;; a*) continue ;; *-\$(cat number)) continue ;; esac
    [ ! -e lose.\$1 ] || touch had.\$1
    [ ! -e none.\$1 ] || rm -rf "\$dir"
    [ ! -e bad.\$1 ] || printf X | dd of="\$(echo "\$dir"/step-*)/model.safetensors" bs=1 seek=9000 conv=notrunc 2>/dev/null
  done
  [ ! -e lose.\$1 ] || { echo "rsh: no route to \$1" >&2; exit 255; }
fi
touch started.\$1
shift
exec sh -c "\$*"
SH
chmod +x rsh
export LOCKSTEP_RSH=$SCRATCH/rsh
at_end() { # shellcheck disable=SC2317
  grep -l "^$SCRATCH/" /dev/shm/lockstep-*/*/owner 2>/dev/null | while read -r o; do rm -rf "${o%/owner}"; done
}
tokens t.bin 8000
base=(train --train_data_path "$SCRATCH/t.bin" --model tiny --num_layers 1 --vocab_size 256 --seq_length 32 --micro_batch_size_per_gpu 1
      --global_batch_size 4 --max_steps 16 --threads 1 --comm_timeout 10)
"$LOCKSTEP" "${base[@]}" --checkpoint_path one >one.log 2>&1 || bad "one worker: $(tail -n 3 one.log)"
# run NAME N FAULT OPTIONS-OF-LAUNCH... -- OPTIONS-OF-TRAIN...
run() {
  local name=$1 n=$2 fault=$3 launch=()
  shift 3
  while [ "$1" != -- ]; do launch+=("$1"); shift; done
  shift
  rm -f started.*
  echo "$name" >now
  LOCKSTEP_FAULT=$fault timeout -k 5 100 "$LOCKSTEP" launch --master_addr 127.0.0.1 --master_port "$(free_port)" --hosts a,b -n "$n" "${launch[@]}" \
    -- "${base[@]}" --save_memory_every 3 --checkpoint_path "$SCRATCH/$name" "$@" >"$name.log" 2>&1
}
alike() {
  same one/epoch-1/model.safetensors "$1/epoch-1/model.safetensors"
  same one/epoch-1/optimizer.safetensors "$1/epoch-1/optimizer.safetensors"
  [ ! -e "$1/memory_copy" ] || bad "$1: memory_copy is left"
  [ ! -e lose.b ] && grep -q "^$SCRATCH/$1\$" /dev/shm/lockstep-*/*/owner 2>/dev/null && bad "$1: copies in memory are left"
}
# from NAME STEP FOLDER: where the second attempt began
from() {
  grep -q '"event": "restart".*"from_step": '"$2," "$1/events.jsonl" || bad "$1: not from step $2: $(grep restart "$1/events.jsonl")"
  grep -q "^\[rank 0\] resumed from $3\$" "$1.log" || bad "$1: not from $3: $(grep resumed "$1.log")"
}
fault="kind=kill,rank=1,step=11"
copy="/dev/shm/lockstep-$(id -u)/[0-9a-f]*-[0-9a-f]*/step"

# a worker of host b is killed: both hosts have step 9, of which the supervisor reads in the run folder; a copy that host b had no room for costs only itself
run killed 2 "$fault;kind=enospc,rank=1,step=6,path=optimizer" --max_restarts 1 -- || bad "killed: exit code $?: $(tail -n 3 killed.log)"
alike killed
from killed 9 "$copy-9"
grep -q "warning: the checkpoint of step 6 was not saved: worker 1: .*No space left" killed.log || bad "killed: no warning: $(grep saved killed.log)"
grep -q "restarting from step 9 in the memory of the hosts" killed.log || bad "killed: $(grep restarting killed.log)"
grep -q '"lost_steps": 1,' killed/events.jsonl || bad "killed: $(grep restart killed/events.jsonl)"
sed -n 's!^\[rank 0\] resumed from .*-\([0-9a-f]*\)/step-9$!\1!p' killed.log >number

# with --audit a copy is used after the comparison in the next step: not if the run is killed before, but if a pass of that step is wrong
run early 2 kind=kill,rank=1,step=10,phase=update --max_restarts 1 -- --audit 100 || bad "early: exit code $?: $(tail -n 3 early.log)"
alike early
from early 6 "$copy-6"
run wrong 2 kind=flip,tensor=grad,rank=1,step=10 --max_restarts 1 -- --audit 1 --audit_depth step || bad "wrong: exit code $?: $(tail -n 3 wrong.log)"
alike wrong
from wrong 9 "$copy-9"

# host b dies while it writes its copy of step 9, and comes back without its memory: the other host has step 6
touch none.b
run gone 2 kind=kill,rank=1,step=9,phase=save,path=optimizer --max_restarts 1 -- --strategy zero3 || bad "gone: exit code $?: $(tail -n 3 gone.log)"
alike gone
from gone 6 "$copy-6"
# the same, and then host b has no room for a copy at first: that of the other host stays
full=kind=enospc,rank=1,path=owner,attempt=2
run full 2 "$fault,attempt=1;$full;$full" --max_restarts 2 -- || bad "full: exit code $?: $(tail -n 3 full.log)"
rm none.b
alike full
from full 9 "$copy-9"
grep -q "attempt 2 failed before its first step: disk: .*/owner .*No space left" full.log || bad "full: $(grep attempt full.log)"
[ "$(grep -c "restarting from step 9 in the memory of the hosts" full.log)" = 2 ] || bad "full: $(grep restarting full.log)"
# a damaged copy on the host of rank 0: the other host has it
touch bad.a
run hurt 2 $fault --max_restarts 1 -- --save_every 8 || bad "hurt: exit code $?: $(tail -n 3 hurt.log)"
grep -q "the copy in memory is not used: .*/step-9/model.safetensors is damaged" hurt.log || bad "hurt: nothing about the damage: $(grep memory hurt.log)"
alike hurt
from hurt 9 "$copy-9"
# both are damaged: the checkpoint on the disk
touch bad.b
run both 2 $fault --max_restarts 1 -- --save_every 8 || bad "both: exit code $?: $(tail -n 3 both.log)"
alike both
from both 8 "$SCRATCH/both/step-8"
rm bad.*

# host b is lost: host a goes on alone, from its memory
touch lose.b
run lost 2 $fault --max_restarts 1 --elastic 1:2 -- --json || bad "lost: exit code $?: $(tail -n 3 lost.log)"
alike lost
from lost 9 "$copy-9"
grep -q '^\[rank 0\] }$' lost.log || bad "lost: --json is not in effect after the loss: $(tail -n 3 lost.log)"
grep -q '"event": "resize", "from": 2, "to": 1' lost/events.jsonl || bad "lost: $(grep resize lost/events.jsonl)"
# what it has left on host b is removed at the next start of any run there (one of another test, perhaps)
[ -e had.b ] || bad "lost: host b has no copy"
LOCKSTEP_HOST_ID=b "$LOCKSTEP" "${base[@]}" --max_steps 1 --checkpoint_path next >next.log 2>&1 || bad "next: $(tail -n 3 next.log)"
grep -q "^$SCRATCH/lost\$" /dev/shm/lockstep-*/*/owner 2>/dev/null && bad "lost: the copy on host b is left"
done_tests
