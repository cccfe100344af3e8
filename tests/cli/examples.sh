#!/usr/bin/env bash
# Every example of examples/ runs with its default settings, checks its result, and writes only into its own folder.
. "$(dirname "$0")/../support/lib.sh"
[ -x "$LOCKSTEP" ] || skip "$LOCKSTEP is not built"
export LOCKSTEP
unset LARGE TEXT PAIRS LAYOUTS WORKERS REPEAT SCHEDULE MODEL PYTHON THREADS

n=0
for script in "$LS_SOURCE"/examples/0*/run.sh; do
  name=$(basename "$(dirname "$script")")
  mkdir "$SCRATCH/home"
  begin=$SECONDS
  (cd "$SCRATCH/home" && WORK=$SCRATCH/$name timeout -k 5 120 "$script") >"$SCRATCH/$name.out" 2>&1 ||
    bad "$name: $(tail -n 15 "$SCRATCH/$name.out")"
  [ "$(tail -n 1 "$SCRATCH/$name.out")" = ok ] || bad "$name did not end with ok"
  [ -s "$(dirname "$script")/README.md" ] || bad "$name has no README.md"
  rmdir "$SCRATCH/home" || bad "$name wrote into the folder it was started from"
  echo "$name: $((SECONDS - begin)) s"
  n=$((n + 1))
done
[ "$n" = 6 ] || bad "$n examples were found"

# A wrong result fails the example: other weights, and a schedule that cannot run.
printf 'lockstep-schedule 1\nname none\nstages 2\nmicro 8\nchunks 1\nmessages auto\nrank 0\nF0\nrank 1\nF0\n' >"$SCRATCH/half.txt"
WORK=$SCRATCH/half SCHEDULE=$SCRATCH/half.txt "$LS_SOURCE/examples/03_pipeline_schedule/run.sh" >"$SCRATCH/half.out" 2>&1 &&
  bad "an incomplete schedule was accepted"
LAYOUTS=tp REPEAT=1 WORK=$SCRATCH/tp "$LS_SOURCE/examples/02_compare_strategies/run.sh" >"$SCRATCH/tp.out" 2>&1 &&
  bad "tensor parallelism rounds differently and was reported as equal"
grep -q "FAILED: the weights differ" "$SCRATCH/tp.out" || bad "no reason: $(tail -n 3 "$SCRATCH/tp.out")"
grep -q "the same weights" "$SCRATCH/half.out" && bad "an incomplete schedule was used"
done_tests
