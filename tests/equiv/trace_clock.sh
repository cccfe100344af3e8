#!/usr/bin/env bash
# Workers whose clocks differ: one of them runs in a time namespace 5000 s ahead. The trace still has one clock: the offset is found within the error
# that it states, and both sides of a collective overlap in time. Needs root, unshare and mpirun.
. "$(dirname "$0")/../support/lib.sh"
. "$(dirname "$0")/../support/mpi.sh"
[ "$(id -u)" = 0 ] || skip "another clock (a time namespace) needs root"
ahead=(unshare --time --monotonic 5000 --fork)
"${ahead[@]}" true 2>/dev/null || skip "there are no time namespaces here"
mkdir -p "$SCRATCH/d" && tokens "$SCRATCH/d/train.bin" 20000
run=("$LOCKSTEP" train --train_data_path "$SCRATCH/d/train.bin" --model tiny --seq_length 64 --micro_batch_size_per_gpu 2 --global_batch_size 8
     --max_steps 8 --threads 1 --profile --checkpoint_path "$SCRATCH/r")
timeout -k 5 120 mpirun --oversubscribe -np 1 "${run[@]}" : -np 1 "${ahead[@]}" "${run[@]}" >"$SCRATCH/log" 2>&1 || bad "$(tail -3 "$SCRATCH/log")"
python3 "$LS_SOURCE/tests/support/trace_check.py" "$SCRATCH/r/profiles/trace.json" 2 step unit collective wait >"$SCRATCH/check" 2>&1 || bad "$(tail -3 "$SCRATCH/check")"
python3 - "$SCRATCH/r/profiles" <<'PY' || bad "the clocks"
import json, sys
events = json.load(open(sys.argv[1] + "/trace.json"))["traceEvents"]
facts = {e["pid"]: e["args"] for e in events if e["name"] == "lockstep_rank"}
assert facts[0]["clock_fixes"] == [] and len(facts[1]["clock_fixes"]) == 2, facts
for fix in facts[1]["clock_fixes"]:
    assert abs(fix["offset_ns"] - 5000 * 10**9) <= fix["error_ns"], fix
largest = max(f["error_ns"] for f in facts[1]["clock_fixes"])
error = largest / 1000
assert json.load(open(sys.argv[1] + "/profile_summary.json"))["lockstep"]["clock_error_ns"] == largest
pairs = {}
for e in events:
    if e.get("cat") == "collective" and e["name"] == "all_reduce":
        pairs.setdefault(e["args"]["seq"], {})[e["pid"]] = e
assert len(pairs) >= 8
for both in pairs.values():  # no worker has the sum before all workers have begun
    begin = max(e["ts"] for e in both.values())
    assert all(e["ts"] + e["dur"] >= begin - 2 * error for e in both.values()), both
print("offset", facts[1]["clock_fixes"])
PY
done_tests
