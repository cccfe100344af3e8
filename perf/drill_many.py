#!/usr/bin/env python3
"""Runs many drills at the same time and adds up their results: faults, runs that failed, times until training goes on.

  perf/drill_many.py --lockstep build/lockstep --jobs 4 --minutes 20 --out drills

Each job is `lockstep drill --json` with a seed of its own; jobs take turns among train -n 4, train -n 2, mpirun and two hosts over TCP (where mpirun or the
MPI plugin is missing: without mpirun). No job starts a run after --minutes. Runs at the same time share the cores, so times until training goes on are upper
limits. Exit code 1: a run failed, or no fault happened. ls-bench: by name
"""

import argparse
import collections
import concurrent.futures
import json
import os
import shutil
import statistics
import subprocess
import sys
import time

import compare

KINDS = [["-n", "4"], ["-n", "4"], ["-n", "2"], ["--launcher", "mpi"], ["--launcher", "tcp"]]


def drill(a, number, end):
    kinds = [k for k in KINDS if k[1] != "mpi" or a.mpi]
    how = kinds[number % len(kinds)]
    minutes = (end - time.monotonic()) / 60
    if minutes <= 0.05:
        return None
    work = os.path.join(a.out, f"tmp-{number}")
    os.makedirs(work, exist_ok=True)
    argv = [a.lockstep, "drill", "--json", "--faults", str(a.faults), "--seed", str(a.seed + number), "--minutes", f"{minutes:.3f}", *how]
    run = subprocess.run(argv, env=dict(os.environ, TMPDIR=work), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    try:
        result = json.loads(run.stdout)
    except ValueError:
        result = {"rows": [], "failed": 1, "faults": 0, "restarts": 0, "launcher": " ".join(how)}
    result["command"] = " ".join(argv)
    result["workers"] = int(how[1]) if how[0] == "-n" else 4
    result["exit_code"] = run.returncode
    result["error"] = run.stderr[-2000:] if run.returncode else ""
    left = os.listdir(work)
    result["left"] = left if run.returncode == 0 else []
    if run.returncode == 0 and not left:
        os.rmdir(work)
    print(f"{number:4d} {' '.join(how):16} {result['faults']:4d} faults, {result['failed']} failed, exit code {run.returncode}"
          + (f", left: {left}" if left else ""), flush=True)
    return result


def table(results):
    rows = collections.defaultdict(lambda: [0, 0, 0, []])
    kinds = collections.Counter()
    for r in results:
        x = rows[f"{r['launcher']}, {r['workers']} workers"]
        x[0] += r["faults"]
        x[1] += r["failed"]
        x[2] += r["restarts"]
        for row in r["rows"]:
            kinds[row["kind"]] += bool(row["happened"])
            if row.get("again_seconds") is not None:
                x[3].append(row["again_seconds"])
    print("\n| launcher | faults | runs that failed | restarts | median until training again, s | longest, s |\n| --- | --- | --- | --- | --- | --- |")
    every = []
    for name, (faults, failed, restarts, again) in sorted(rows.items()):
        every += again
        times = f"{statistics.median(again):.2f} | {max(again):.2f}" if again else "- | -"
        print(f"| {name} | {faults} | {failed} | {restarts} | {times} |")
    total = [sum(x[k] for x in rows.values()) for k in range(3)]
    times = f"{statistics.median(every):.2f} | {max(every):.2f}" if every else "- | -"
    print(f"| all | {total[0]} | {total[1]} | {total[2]} | {times} |")
    print("\n" + ", ".join(f"{k} {n}" for k, n in sorted(kinds.items())))
    return total


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--lockstep", default="build/lockstep")
    p.add_argument("--jobs", type=int, default=4)
    p.add_argument("--minutes", type=float, default=20)
    p.add_argument("--faults", type=int, default=25, help="of one drill")
    p.add_argument("--seed", type=int, default=1000)
    p.add_argument("--out", required=True, help="folder for failed runs and drills.json")
    a = p.parse_args()
    compare.check_program(p, a.lockstep)
    a.lockstep = os.path.abspath(a.lockstep)
    a.out = os.path.abspath(a.out)
    a.mpi = shutil.which("mpirun") and os.path.exists(os.path.join(os.path.dirname(a.lockstep), "lockstep_mpi.so"))
    os.makedirs(a.out, exist_ok=True)
    end = time.monotonic() + 60 * a.minutes
    results = []
    number = 0
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        running = set()
        while time.monotonic() < end or running:
            while len(running) < a.jobs and time.monotonic() < end:
                running.add(pool.submit(drill, a, number, end))
                number += 1
            done, running = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            results += [d.result() for d in done if d.result()]
    with open(os.path.join(a.out, "drills.json"), "w", encoding="utf-8") as f:
        json.dump(results, f, indent=1)
    total = table(results)
    bad = [r for r in results if r["exit_code"] or r["left"]]
    for r in bad:
        print(f"FAILED: {r['command']}: exit code {r['exit_code']}, {r['failed']} runs failed, left {r['left']}: {r['error'].strip()[-300:]}")
    return 1 if bad or not total[0] else 0


if __name__ == "__main__":
    sys.exit(main())
