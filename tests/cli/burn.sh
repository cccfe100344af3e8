#!/usr/bin/env bash
# doctor --burn: workers that compute alike are ok; one that computes another number in one round is found, also if it is alone.
. "$(dirname "$0")/../support/lib.sh"
expect 0 "^1 .*[0-9]  ok" "$LOCKSTEP" doctor --burn 0.005 -n 2
LOCKSTEP_FAULT="kind=flip,tensor=act,rank=1,step=2,unit=1,bit=20" expect 1 "^1 .*WRONG: 1 of .* first round 2" "$LOCKSTEP" doctor --burn 0.005 -n 2
grep -q "^0 .* ok$" "$SCRATCH/out" || bad "worker 0: $(cat "$SCRATCH/out")"
LOCKSTEP_FAULT="kind=flip,tensor=param,rank=0,step=2,unit=2,bit=0" expect 1 '"wrong_rounds": 1' "$LOCKSTEP" doctor --burn 0.005 -n 1 --json
expect 2 "needs --burn" "$LOCKSTEP" doctor -n 2
done_tests
