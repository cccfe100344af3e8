#!/usr/bin/env bash
# ls-test: hours
# lockstep drill: a short plan under train -n (LS_TEST_ALL: 1,000 faults over all strategies, with -n, mpirun and two hosts over TCP); the plan is a
# function of the seed; a run that does not recover is found; refusals; a stop leaves nothing.
. "$(dirname "$0")/../support/lib.sh"
export TMPDIR=$SCRATCH/tmp
mkdir -p "$TMPDIR"
drill() { timeout -k 5 14000 "$LOCKSTEP" drill "$@"; }
check() { # NAME ARGS...
  drill "${@:2}" --json >"$SCRATCH/$1.json" 2>"$SCRATCH/$1.err" || bad "drill $1: exit code $?: $(head -n 5 "$SCRATCH/$1.err")"
  python3 - "$SCRATCH/$1.json" <<'PY' || bad "drill $1: $(head -c 600 "$SCRATCH/$1.json")"
import json, sys
d = json.load(open(sys.argv[1]))
assert d["faults"] == sum(r["happened"] for r in d["rows"]) > 0 and d["failed"] == 0 and d["restarts"] > 0, d
assert d["median_again_seconds"] < 10, d["median_again_seconds"]
assert all(r["same_bits"] and r["exit_code"] == 0 for r in d["rows"])
print(f'{d["faults"]} faults with {d["launcher"]}, {d["restarts"]} restarts, median {d["median_again_seconds"]:.2f} s, longest {d["longest_again_seconds"]:.2f} s')
PY
  [ -z "$(ls "$TMPDIR")" ] || bad "drill $1 leaves $(ls "$TMPDIR")"
}
if [ -n "${LS_TEST_ALL:-}" ]; then
  check n --faults 700 --seed 17
  check two --faults 100 --seed 18 -n 2
  if command -v mpirun >/dev/null && [ -f "${LS_BUILD:-$(dirname "$LOCKSTEP")}/lockstep_mpi.so" ]; then check mpi --faults 100 --seed 19 --launcher mpi; fi
  check tcp --faults 100 --seed 20 --launcher tcp
  check flips --faults 50 --seed 1029 --launcher tcp --kinds flip # every rank reports the result of an audit, also when a peer ends first
  # the plan is a function of the seed: the rows without what was measured
  plan() { python3 -c 'import json,sys; print([[r[k] for k in ("kind", "rank", "step", "layout", "plan")] for r in json.load(open(sys.argv[1]))["rows"]])' "$1"; }
  check a --faults 5 --seed 3 --kinds kill,slow -n 2
  check b --faults 5 --seed 3 --kinds kill,slow -n 2
  [ "$(plan "$SCRATCH/a.json")" = "$(plan "$SCRATCH/b.json")" ] || bad "one seed, two plans: $(plan "$SCRATCH/a.json") $(plan "$SCRATCH/b.json")"
else
  check n --faults 4 --seed 5 --kinds kill,fsync,abort,flip
fi

# a run with another result is found: the data changes after the undisturbed run
mkdir "$SCRATCH/data"
tokens "$SCRATCH/data/train.bin" 20000 1
tokens "$SCRATCH/other.bin" 20000 2
"$LOCKSTEP" drill --faults 3 --kinds clock --strategy ddp -n 2 --data "$SCRATCH/data" --out "$SCRATCH/kept" >"$SCRATCH/out" 2>&1 &
pid=$!
await $pid test -e "$SCRATCH/kept/undisturbed-tp1/RUN_COMPLETE.txt" || bad "no undisturbed run"
mv "$SCRATCH/other.bin" "$SCRATCH/data/train.bin"
wait $pid
code=$?
[ $code = 1 ] && grep -q "the result differs from the undisturbed run" "$SCRATCH/out" || bad "another result is not found: exit code $code: $(cat "$SCRATCH/out")"
[ -e "$SCRATCH/kept/run-1/events.jsonl" ] || bad "--out does not keep the runs"
expect 2 "exists; choose another folder" drill --out "$SCRATCH/kept"
expect 2 "is not one of kill|stop" drill --kinds kill,nuke
expect 2 "power of two" drill -n 3
expect 2 "host needs --launcher tcp" drill --kinds host
expect 2 "pipeline_zero1 needs 4" drill --strategy pipeline_zero1 -n 2

# the reason of a launcher that fails is its last line with words
mkdir "$SCRATCH/bin"
printf '#!/bin/sh\necho "There are not enough slots" >&2\necho ------------ >&2\nexit 1\n' >"$SCRATCH/bin/mpirun"
chmod +x "$SCRATCH/bin/mpirun"
PATH=$SCRATCH/bin:$PATH expect 1 "exit code 1: There are not enough slots;" drill --faults 1 --kinds kill --strategy ddp -n 2 --launcher mpi --out "$SCRATCH/mpi"

# a stop ends the run and removes the folder
"$LOCKSTEP" drill --faults 100 --seed 2 >"$SCRATCH/stop" 2>&1 &
pid=$!
await $pid grep -q "^ *1 " "$SCRATCH/stop" || bad "the first row is missing"
kill -TERM $pid
wait $pid
code=$?
[ $code = 143 ] || bad "SIGTERM: exit code $code: $(tail -n 2 "$SCRATCH/stop")"
[ -z "$(ls "$TMPDIR")" ] || bad "SIGTERM leaves $(ls "$TMPDIR")"
done_tests
