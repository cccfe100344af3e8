#!/usr/bin/env python3
"""trace_check.py FILE RANKS [CATEGORY...]: fails unless FILE is a trace of that many ranks that a viewer can show.

Every rank is there with a name; every thread that has spans has a name; spans of a thread stand in the order of their begins and are
nested or apart; times and lengths are numbers from 0 on; the categories that are named occur on every rank. Prints a table.
"""
import collections
import json
import sys

path, ranks, wanted = sys.argv[1], int(sys.argv[2]), set(sys.argv[3:])
with open(path, encoding="ascii") as f:
    text = f.read()
trace = json.loads(text)
assert set(trace) == {"displayTimeUnit", "traceEvents"} and trace["displayTimeUnit"] in ("ms", "ns"), sorted(trace)
events = trace["traceEvents"]
names, threads, facts = {}, {}, {}
spans = collections.defaultdict(list)
seen = collections.defaultdict(collections.Counter)
ns = lambda us: round(us * 1000)
for e in events:
    assert e["ph"] in ("M", "X", "C"), e
    assert isinstance(e["pid"], int) and isinstance(e["name"], str) and e["name"], e
    if e["ph"] == "M":
        if e["name"] == "process_name":
            assert e["pid"] not in names, e
            names[e["pid"]] = e["args"]["name"]
        if e["name"] == "thread_name":
            threads[e["pid"], e["tid"]] = e["args"]["name"]
        if e["name"] == "lockstep_rank":
            facts[e["pid"]] = e["args"]
        continue
    assert isinstance(e["ts"], float) and e["ts"] >= 0, e
    if e["ph"] == "C":
        assert all(isinstance(v, (int, float)) for v in e["args"].values()), e
        continue
    assert isinstance(e["dur"], float) and e["dur"] >= 0, e
    spans[e["pid"], e["tid"]].append((ns(e["ts"]), ns(e["ts"]) + ns(e["dur"]), e))
    seen[e["pid"]][e["cat"]] += 1
assert sorted(names) == list(range(ranks)), f"ranks {sorted(names)}, expected 0 to {ranks - 1}"
assert sorted(facts) == list(range(ranks)), sorted(facts)
assert len(set(threads.values())) > 0
for key, list_ in spans.items():
    assert key in threads, f"thread {key} has no name"
    stack, last = [], 0
    for begin, end, e in list_:
        assert begin >= last, f"{e} begins before the one above it"
        last = begin
        while stack and stack[-1][1] <= begin:
            stack.pop()
        assert not stack or end <= stack[-1][1], f"{e} overlaps {stack[-1][2]}"
        stack.append((begin, end, e))
for r in range(ranks):
    missing = wanted - set(seen[r])
    assert not missing, f"rank {r} has no {sorted(missing)}: {dict(seen[r])}"
    print(r, names[r], dict(seen[r]), [t for (p, _), t in sorted(threads.items()) if p == r])
