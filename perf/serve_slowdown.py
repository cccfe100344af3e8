#!/usr/bin/env python3
"""Effect of `train --serve` on training: one run, in which windows with 100 requests per second (a fifth of them malformed or aborted, and 20
clients that send one byte per second) alternate with windows without, in random order.

usage: perf/serve_slowdown.py DATA [--program build/lockstep] [--pairs 24] [--seconds 4] [--threads 1]

Prints the ratio with / without of the time of a step and of its CPU time, as the median over pairs of windows with a 95 % bootstrap interval, the
rate that was reached, and the CPU time of the server. The time of a step is valid only on a machine where nothing else runs: the client
needs CPU, too. The load average at the start is printed with the result."""
import argparse
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time

import compare

root = pathlib.Path(__file__).resolve().parent.parent


def interval(values):
    """Median and its 95 % bootstrap interval."""
    r = random.Random(1)
    medians = sorted(statistics.median(r.choices(values, k=len(values))) for _ in range(4000))
    return {"median": round(statistics.median(values), 4), "low": round(medians[100], 4), "high": round(medians[3899], 4)}


def cpu_seconds(pid):
    """User and system time of a process."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("data")
    p.add_argument("--program", default=str(root / "build" / "lockstep"))
    p.add_argument("--pairs", type=int, default=24)
    p.add_argument("--seconds", type=float, default=4)
    p.add_argument("--threads", type=int, default=1)
    o = p.parse_args()
    compare.check_program(p, o.program, "--program")
    compare.end_on_sigterm()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        errors = open(f"{scratch}/err", "w+")
        run = subprocess.Popen([o.program, "train", "--data", o.data, "--device", "cpu", "--model", "tiny", "--num_layers", "2", "--seq_length", "64", "--micro_batch_size_per_gpu", "4",
                                "--threads", str(o.threads), "--checkpoint_path", f"{scratch}/run", "--max_steps", "100000000", "--max_val_steps", "0", "--serve"],
                               stdout=subprocess.DEVNULL, stderr=errors)
        steps = pathlib.Path(f"{scratch}/run/metrics.jsonl")
        try:
            while not (steps.exists() and steps.stat().st_size) and run.poll() is None:
                time.sleep(0.1)
            port = re.search(r":(\d+)/", pathlib.Path(f"{scratch}/err").read_text())
            if run.poll() is not None or not port:
                sys.exit("the run did not start: " + pathlib.Path(f"{scratch}/err").read_text())
            server = subprocess.run(["pgrep", "-P", str(run.pid)], capture_output=True, text=True, check=True).stdout.split()[0]
            windows, rates, used = [], [], 0.0
            for pair in range(o.pairs):
                for on in random.Random(pair).sample([False, True], 2):
                    begin, before = time.time(), cpu_seconds(server)
                    if on:
                        done = subprocess.run([sys.executable, str(root / "tests/support/live_client.py"), port[1], "load", str(o.seconds), "run"], capture_output=True, text=True, check=True,
                                              start_new_session=True)  # autogroup: not from the share of the run
                        rates.append(json.loads(done.stdout)["per_second"])
                        used += cpu_seconds(server) - before
                    else:
                        time.sleep(o.seconds)
                    windows.append((on, begin, time.time()))
        finally:
            run.terminate()
            run.wait()
        lines = [json.loads(line) for line in steps.read_text().splitlines()]
    mean = {"step": {False: [], True: []}, "cpu": {False: [], True: []}}
    for on, begin, end in windows:
        inside = [x for x in lines if 1000 * begin < x["time_unix_ms"] - 1000 * x["step_time_sec"] and x["time_unix_ms"] < 1000 * end]
        mean["step"][on].append(statistics.mean(x["step_time_sec"] for x in inside))
        mean["cpu"][on].append(statistics.mean(x["step_time_sec"] * x["cpu_utilisation"] for x in inside))
    ratio = {k: interval([b / a for a, b in zip(v[False], v[True])]) for k, v in mean.items()}
    n = statistics.mean(rates) * o.seconds * len(rates)
    print(json.dumps({"load_average_at_start": load, "step_ms_without": round(1e3 * statistics.median(mean["step"][False]), 2), "step_time_ratio": ratio["step"], "step_cpu_ratio": ratio["cpu"],
                      "requests_per_sec": round(statistics.mean(rates), 1), "server_cpu_ms_per_request": round(1e3 * used / n, 3)}, indent=2))


main()
