#!/usr/bin/env python3
"""Cost of `lockstep train --audit K`: CPU seconds of runs with and without audits, in turns.

A run with --audit EVERY has STEPS / EVERY audits, so one audit costs (with - without) / audits. The table gives it in steps, and as a share
of a run with K = 100 and K = 10. CPU seconds are used because they vary less than wall time on a machine that others use, too.

    perf/audit_cost.py [LOCKSTEP] [--pairs 5] [--steps 40] [--every 4]
"""
import argparse
import os
import random
import resource
import struct
import subprocess
import sys
import tempfile

parser = argparse.ArgumentParser()
parser.add_argument("lockstep", nargs="?", default="build/lockstep")
parser.add_argument("--pairs", type=int, default=5)
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--every", type=int, default=4)
parser.add_argument("--only", type=int, nargs="*", help="numbers of the layouts, from 0")
a = parser.parse_args()

LAYOUTS = [
    ("1 worker, 1 micro-batch", ["--grad_accum_steps", "1"]),
    ("1 worker, 8 micro-batches", ["--grad_accum_steps", "8"]),
    ("ddp of 2, 4 micro-batches", ["-n", "2", "--strategy", "ddp", "--grad_accum_steps", "4"]),
    ("zero3 of 2, 4 micro-batches", ["-n", "2", "--strategy", "zero3", "--grad_accum_steps", "4"]),
]


def cpu_of(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=dict(os.environ, LS_DEVICE="cpu"))
    if done.returncode:
        sys.exit(done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


with tempfile.TemporaryDirectory() as folder:
    r = random.Random(1)
    ids = [r.randrange(256) for _ in range(200_000)]
    with open(f"{folder}/train.bin", "wb") as f:
        f.write(struct.pack(f"<{len(ids)}H", *ids))
    base = [a.lockstep, "train", "--data", folder, "--model", "tiny", "--seq_length", "128", "--micro_batch_size_per_gpu", "4", "--max_val_steps", "0",
            "--checkpoint_path", f"{folder}/run", "--threads", "1"]
    print(f"{'layout':<30}{'depth':<8}{'step CPU s':>12}{'audit CPU s':>13}{'audit/step':>12}{'K = 100':>9}{'K = 10':>9}")
    for name, options in [LAYOUTS[i] for i in a.only or range(len(LAYOUTS))]:
        for depth in ["micro", "step"]:
            if depth == "step" and options[-1] == "1":
                continue
            start, plain, audited = [], [], []
            for _ in range(a.pairs):
                start.append(cpu_of([*base, *options, "--max_steps", "1"]))
                plain.append(cpu_of([*base, *options, "--max_steps", str(a.steps)]))
                audited.append(cpu_of([*base, *options, "--max_steps", str(a.steps), "--audit", str(a.every), "--audit_depth", depth]))
            median = lambda x: sorted(x)[len(x) // 2]
            step = (median(plain) - median(start)) / (a.steps - 1)
            audit = (median(audited) - median(plain)) / (a.steps // a.every)
            print(f"{name:<30}{depth:<8}{step:>12.4f}{audit:>13.4f}{audit / step:>12.2f}{100 * audit / step / 100:>8.2f}%{100 * audit / step / 10:>8.1f}%", flush=True)
