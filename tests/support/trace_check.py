#!/usr/bin/env python3
"""trace_check.py FILE RANKS [CATEGORY...]: fails unless FILE is a trace of that many ranks that a viewer can show.

Every rank has a name, and so has every thread with spans. The spans of a thread are sorted by their begin and either nested or disjoint.
Times and durations are numbers of at least 0. The given categories occur on every rank. Prints a table.

This relies on these rules of Chrome's trace event format: an object with traceEvents; each event has a phase (ph), process (pid) and name;
X has ts and dur in microseconds, a thread (tid) and a category; C has numbers in args; M names processes and threads, once each. The JSON
has no NaN, infinities or duplicate keys, because web pages parse it.
"""
import collections
import json
import sys

path, ranks, wanted = sys.argv[1], int(sys.argv[2]), set(sys.argv[3:])
with open(path, encoding="ascii") as f:
    text = f.read()


def once(pairs):
    keys = [k for k, _ in pairs]
    assert len(set(keys)) == len(keys), f"duplicate key: {keys}"
    return dict(pairs)


def refuse(word):
    raise AssertionError(f"{word} is not JSON")


trace = json.loads(text, object_pairs_hook=once, parse_constant=refuse)
assert set(trace) == {"displayTimeUnit", "traceEvents"} and trace["displayTimeUnit"] in ("ms", "ns"), sorted(trace)
events = trace["traceEvents"]
names, threads, facts = {}, {}, {}
spans = collections.defaultdict(list)
seen = collections.defaultdict(collections.Counter)
ns = lambda us: round(us * 1000)
for e in events:
    assert e["ph"] in ("M", "X", "C"), e
    assert isinstance(e["pid"], int) and isinstance(e["name"], str) and e["name"], e
    assert isinstance(e.get("args", {}), dict) and isinstance(e.get("tid", 0), int) and 0 <= e.get("tid", 0) < 2**31, e
    if e["ph"] == "M":
        assert e["name"] in ("process_name", "process_sort_index", "thread_name", "thread_sort_index", "lockstep_rank"), e
        assert "ts" not in e or e["ts"] == 0, e
        if e["name"] == "process_name":
            assert e["pid"] not in names, e
            names[e["pid"]] = e["args"]["name"]
        if e["name"] == "thread_name":
            assert (e["pid"], e["tid"]) not in threads, e
            threads[e["pid"], e["tid"]] = e["args"]["name"]
        if e["name"] == "lockstep_rank":
            facts[e["pid"]] = e["args"]
        continue
    assert isinstance(e["ts"], float) and e["ts"] >= 0, e
    if e["ph"] == "C":
        assert e["args"] and all(isinstance(v, (int, float)) for v in e["args"].values()), e
        continue
    assert isinstance(e["dur"], float) and e["dur"] >= 0 and isinstance(e["cat"], str) and e["cat"], e
    spans[e["pid"], e["tid"]].append((ns(e["ts"]), ns(e["ts"]) + ns(e["dur"]), e))
    seen[e["pid"]][e["cat"]] += 1
assert sorted(names) == list(range(ranks)), f"ranks {sorted(names)}, expected 0 to {ranks - 1}"
assert sorted(facts) == list(range(ranks)), sorted(facts)
assert len(set(threads.values())) > 0
for key, list_ in spans.items():
    assert key in threads, f"thread {key} has no name"
    stack, last = [], 0
    for begin, end, e in list_:
        assert begin >= last, f"{e} begins before the span above it"
        last = begin
        while stack and stack[-1][1] <= begin:
            stack.pop()
        assert not stack or end <= stack[-1][1], f"{e} overlaps {stack[-1][2]}"
        stack.append((begin, end, e))
for r in range(ranks):
    missing = wanted - set(seen[r])
    assert not missing, f"rank {r} has no {sorted(missing)}: {dict(seen[r])}"
    print(r, names[r], dict(seen[r]), [t for (p, _), t in sorted(threads.items()) if p == r])
