#!/usr/bin/env python3
"""What tracing costs a training step: the same run with and without --profile, in turns.

  bench/trace_overhead.py [--rounds 10] [--steps 60] [--skip 10] [--layout NAME ...] [--program build/lockstep]

A round is one run of each side, in an order that changes from round to round; a run counts as the median of its steps after the first
--skip. The answer is the mean over rounds of (traced / untraced - 1), with its 95 % interval (Student's t), once in wall time and once in rank
0's CPU time, which a busy machine disturbs less. With it: how many spans a step records, so that the figure can be held against the cost of
one (bench/trace_cost.c).
"""
import argparse
import json
import math
import os
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile

LAYOUTS = {
    "one": ["-n", "1"],
    "ddp2": ["-n", "2", "--strategy", "ddp", "--bucket", "200000"],
    "zero3-2": ["-n", "2", "--strategy", "zero3"],
    "1f1b-2": ["-n", "2", "--pp", "2", "--schedule", "1f1b"],
}
T95 = [0, 12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086]


def once(o, data, layout, traced):
    out = tempfile.mkdtemp(prefix="lockstep-overhead.")
    args = [o.program, "train", "--train_data_path", data, "--model", "tiny", "--vocab_size", "4096", "--seq_length", str(o.seq_length),
            "--micro_batch_size_per_gpu", "2", "--global_batch_size", "16", "--max_steps", str(o.steps), "--threads", "1",
            "--checkpoint_path", out, "--profile_mode"] + LAYOUTS[layout] + (["--profile"] if traced else [])
    try:
        r = subprocess.run(args, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=600, text=True)
        if r.returncode:
            sys.exit(f"{' '.join(args)}: {r.stderr[-400:]}")
        lines = [json.loads(line) for line in open(out + "/metrics.jsonl")][o.skip:]
        wall = statistics.median(m["step_time_sec"] for m in lines)
        cpu = statistics.median(m["step_time_sec"] * m["cpu_utilisation"] for m in lines)  # one thread
        spans = 0
        if traced:
            spans = json.load(open(out + "/profiles/profile_summary.json"))["lockstep"]["per_rank"][0]["spans"]
        return wall, cpu, spans / o.steps
    finally:
        shutil.rmtree(out, ignore_errors=True)


def interval(ratio):
    mean, n = statistics.mean(ratio), len(ratio)
    half = T95[min(n - 1, 20)] * statistics.stdev(ratio) / math.sqrt(n) if n > 1 else float("nan")
    return f"{100 * mean:+.2f} ({100 * (mean - half):+.2f} … {100 * (mean + half):+.2f})"


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=10)
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--skip", type=int, default=10)
    p.add_argument("--seq_length", type=int, default=128)
    p.add_argument("--layout", nargs="*", default=list(LAYOUTS), choices=list(LAYOUTS))
    p.add_argument("--program", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "build", "lockstep"))
    o = p.parse_args()
    r = random.Random(1)
    with tempfile.NamedTemporaryFile(suffix=".bin") as data:
        n = 16 * o.seq_length * (o.steps + 2)
        data.write(struct.pack(f"<{n}H", *(r.randrange(4096) for _ in range(n))))
        data.flush()
        print("| layout | spans a step | untraced ms | wall time, overhead % (95 %) | CPU time, overhead % (95 %) |\n| --- | --- | --- | --- | --- |")
        for layout in o.layout:
            wall, cpu, plain, spans = [], [], [], 0
            for k in range(o.rounds):
                got = {side: once(o, data.name, layout, side) for side in ((False, True) if k % 2 == 0 else (True, False))}
                wall.append(got[True][0] / got[False][0] - 1)
                cpu.append(got[True][1] / got[False][1] - 1)
                plain.append(got[False][0])
                spans = got[True][2]
            print(f"| {layout} | {spans:.0f} | {1e3 * statistics.mean(plain):.2f} | {interval(wall)} | {interval(cpu)} |", flush=True)


if __name__ == "__main__":
    main()
