#!/usr/bin/env python3
"""What `lockstep plan` prints for the published runs of the ZeRO scaling study (docs/REFERENCES.md), beside what the study published.
(ls-bench: by name; needs no GPU.)

  python3 perf/plan_published.py [--lockstep build/lockstep]

Prints the table of docs/PLAN.md. The plan is that of this program: it sends gradients in fp32, the study's program in fp16.
"""
import argparse
import json
import subprocess
import sys

TOKENS = 29_171_712  # of the study's epoch: 3,561 updates of 16 x 512 tokens
#       preset  cards  batch  published: tokens/s, or seconds of the epoch
ROWS = [
    ("t4", 1, 16, None, 2259),
    ("t4", 4, 64, None, 650),
    ("v100", 1, 16, 29600, None),
    ("v100", 2, 16, 57289, None),
    ("v100", 4, 16, 100791, None),
]


def planned(lockstep, cluster, cards, batch):
    """Tokens/s of the study's layout: ZeRO-1 with one bucket, micro-batches of 4."""
    strategy = "zero1" if cards > 1 else "single"
    words = [lockstep, "plan", "--model", "gpt2", "--variant", "r1", "--seq_length", "512", "--global_batch", str(batch), "--cluster", cluster,
             "--workers", str(cards), "--strategy", strategy, "--max_tp", "1", "--bucket", "500000000", "--all", "--json"]
    run = subprocess.run(words, capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"{' '.join(words)}: exit code {run.returncode}: {run.stderr.strip()}")
    plan = json.loads(run.stdout)
    if plan["precision"] != "fp16":
        sys.exit(f"{cluster}: planned in {plan['precision']}; the study ran in fp16")
    return next(x["tokens_per_sec"] for x in plan["layouts"] if x["dp"] == cards and x["micro_batch"] == 4)


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("--lockstep", default="build/lockstep")
    o = a.parse_args()
    print("| cards | sequences per step | published | plan | difference |\n| --- | --- | --- | --- | --- |")
    for cluster, cards, batch, rate, seconds in ROWS:
        got = planned(o.lockstep, cluster, cards, batch)
        shown = f"{got:,.0f} tokens/s" if rate else f"{TOKENS / got:,.0f} s"
        known = f"{rate:,} tokens/s" if rate else f"{seconds:,} s"
        off = got / rate - 1 if rate else TOKENS / got / seconds - 1
        print(f"| {cards} x {cluster} | {batch} | {known} | {shown} | {round(100 * off) or 0:+d} % |")


if __name__ == "__main__":
    main()
