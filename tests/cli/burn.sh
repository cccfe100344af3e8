#!/usr/bin/env bash
# doctor --burn: workers that compute alike are ok; one that computes another number in one round is found, also if it is alone.
# A wrong round or reference is blamed on the worker that computed it, and nobody is blamed without a majority.
. "$(dirname "$0")/../support/lib.sh"
cd "$SCRATCH" || exit 1
expect 0 "^1 .*[0-9]  ok" "$LOCKSTEP" doctor --burn 0.005 -n 2
LOCKSTEP_FAULT="kind=flip,tensor=act,rank=1,step=2,unit=1,bit=20" expect 1 "^1 .*WRONG: 1 of .* first round 2" "$LOCKSTEP" doctor --burn 0.005 -n 2
grep -q "^0 .* ok$" "$SCRATCH/out" || bad "worker 0: $(cat "$SCRATCH/out")"
LOCKSTEP_FAULT="kind=flip,tensor=param,rank=0,step=2,unit=2,bit=0" expect 1 '"wrong_rounds": 1' "$LOCKSTEP" doctor --burn 0.005 -n 1 --json
minutes=0.005
burn() { # N FAULT TEXT RESULT...: exit code 1, the text, and the result of each worker
  local n=$1 i=0
  LOCKSTEP_FAULT=$2 expect 1 "$3" "$LOCKSTEP" doctor --burn $minutes -n "$n"
  shift 3
  for words; do
    grep -q "^$i .*[0-9]  $words\$" "$SCRATCH/out" || bad "worker $i of $n, expected $words: $(cat "$SCRATCH/out")"
    i=$((i + 1))
  done
}
# Step 1 is the first round, and then the reference; two flips of one bit cancel each other. Of two rounds, either may be the wrong one.
flip() { echo "kind=flip,tensor=param,rank=$1,unit=1,element=5,step=1,bit=$2,count=$3"; }
reference() { echo "$(flip "$1" "$2" 2);$(flip "$1" "$2" 1)"; }
for n in 2 3; do
  burn $n "$(flip 0 30 2)" "1 of $n workers computed wrong numbers (first: worker 0 " "WRONG: 1 of .* first round [12]" ok
  burn $n "$(reference 0 30)" "1 of $n workers" "WRONG: loss [0-9.]*, reference nan" ok
done
burn 2 "$(flip 1 22 1)" "1 of 2 workers computed wrong numbers (first: worker 1 " ok "WRONG: 1 of .* first round [12]"
burn 3 "$(reference 0 22)" "1 of 3 workers" "WRONG: other bits than most workers in the reference loops" "ok, as the majority" "ok, as the majority"
differs="differs; no majority shows who is wrong"
burn 2 "$(reference 1 22)" "no majority shows which of them are wrong" "$differs" "$differs"
# both rounds of a worker, so that it does not contradict itself
minutes=1e-6
burn 3 "$(flip 2 3 1);$(flip 2 3 1 | sed s/step=1/step=2/)" "1 of 3 workers" "ok, as the majority" "ok, as the majority" "WRONG: other bits than most workers"
expect 2 "needs --burn" "$LOCKSTEP" doctor -n 2
for n in "" "-n 2"; do
  # shellcheck disable=SC2086
  expect 2 "MINUTES must be above 0" "$LOCKSTEP" doctor --burn 0 $n
done
# a signal ends it; there are no checkpoints to speak of
"$LOCKSTEP" doctor --burn 2 -n 2 >burn.out 2>burn.err &
pid=$!
await $pid grep -q "burn " burn.err || bad "no progress: $(cat burn.err)"
kill -TERM $pid
wait $pid
[ $? = 143 ] || bad "SIGTERM: not exit code 143"
grep -q "stopped by SIGTERM: doctor --burn was stopped before its time was over; there is no result" burn.err || bad "SIGTERM: $(cat burn.err)"
done_tests
