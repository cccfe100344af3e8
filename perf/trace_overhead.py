#!/usr/bin/env python3
"""Overhead of tracing per training step, measured in pairs so that noise of a busy machine cancels.

  perf/trace_overhead.py [--pairs 400] [--segment 3] [--runs 3] [--layout NAME ...] [--build build]

Tracing is switched on and off between steps of one run on all its workers (perf/trace_steps.c): a pair is a traced and an untraced segment of
consecutive steps, in random order, in the same processes and memory. The first step of a segment is not counted (it completes work of the
previous one). Two results, each with a 95 % interval from resampling blocks of pairs:

  pairs     the median over pairs of log(traced / untraced), of the medians of the two segments
  fastest   the difference of the fastest 10 % of all traced and all untraced steps, which were not disturbed

in wall time and in CPU time of rank 0.
"""
import argparse
import collections
import math
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile

import compare

LAYOUTS = {
    "one": ("1", []),
    "ddp2": ("2", ["--strategy", "ddp", "--bucket", "200000"]),
    "zero3-2": ("2", ["--strategy", "zero3"]),
    "1f1b-2": ("2", ["--pp", "2", "--schedule", "1f1b"]),
}
BLOCK, RESAMPLES = 5, 2000


def steps(o, data, layout):
    """[(wall, cpu) of the traced segment, of the untraced one] a pair."""
    n, words = LAYOUTS[layout]
    args = [os.path.join(o.build, "trace_steps"), n, str(o.pairs), str(o.segment), "--train_data_path", data, "--model", "tiny", "--vocab_size", "1024",
            "--seq_length", str(o.seq_length), "--micro_batch_size_per_gpu", "1", "--global_batch_size", n, "--threads", "1", "--epochs", "1000",
            "--checkpoint_path", "/nonexistent", "-n", n] + words
    r = subprocess.run(args, capture_output=True, timeout=1800, text=True)
    if r.returncode:
        sys.exit(f"{' '.join(args)}: {r.stderr[-400:]}")
    pairs = collections.defaultdict(lambda: ([], []))
    for line in r.stdout.splitlines():
        pair, traced, place, wall, cpu = line.split()
        if int(place):
            pairs[int(pair)][1 - int(traced)].append((float(wall), float(cpu)))
    return list(pairs.values())


def by_pairs(pairs, k):
    mid = lambda seg: statistics.median(x[k] for x in seg)
    return math.exp(statistics.median(math.log(mid(a) / mid(b)) for a, b in pairs)) - 1


def by_fastest(pairs, k):
    def tenth(side):
        x = sorted(s[k] for p in pairs for s in p[side])
        return statistics.mean(x[: max(1, len(x) // 10)])
    return tenth(0) / tenth(1) - 1


def interval(f, pairs, k):
    r = random.Random(7)
    blocks = [pairs[i : i + BLOCK] for i in range(0, len(pairs), BLOCK)]
    tries = sorted(f([p for b in r.choices(blocks, k=len(blocks)) for p in b], k) for _ in range(RESAMPLES))
    low, high = tries[int(0.025 * RESAMPLES)], tries[int(0.975 * RESAMPLES)]
    return f"{100 * f(pairs, k):+.2f} ({100 * low:+.2f} … {100 * high:+.2f})", high


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--pairs", type=int, default=400, help="pairs per run")
    p.add_argument("--segment", type=int, default=3, help="steps per segment; the first one is not counted")
    p.add_argument("--runs", type=int, default=3)
    p.add_argument("--seq_length", type=int, default=16, help="sequence length; short steps fit between disturbances")
    p.add_argument("--layout", nargs="*", default=list(LAYOUTS), choices=list(LAYOUTS))
    p.add_argument("--build", default=os.environ.get("LS_BUILD", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "build")))
    o = p.parse_args()
    compare.end_on_sigterm()
    r = random.Random(1)
    with tempfile.NamedTemporaryFile(suffix=".bin") as data:
        n = 2 * o.seq_length * (2 * o.pairs * o.segment + 40)  # one epoch of the largest layout
        data.write(struct.pack(f"<{n}H", *(r.randrange(1024) for _ in range(n))))
        data.flush()
        print("Overhead of tracing, percent (95 % interval).\n")
        print("| layout | pairs | untraced ms, median and fastest tenth | wall, pairs | wall, fastest | CPU, pairs | CPU, fastest |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for layout in o.layout:
            pairs = [x for _ in range(o.runs) for x in steps(o, data.name, layout)]
            plain = sorted(s[0] for p in pairs for s in p[1])
            cells = [interval(f, pairs, k)[0] for k in (0, 1) for f in (by_pairs, by_fastest)]
            print(f"| {layout} | {len(pairs)} | {1e3 * statistics.median(plain):.2f}, {1e3 * statistics.mean(plain[: len(plain) // 10]):.2f} "
                  f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
