#!/usr/bin/env python3
"""Speed of the lockstep encoder and of encode_ordinary in tiktoken: same text, same run, alternating.

    python perf/tokenizer_vs_tiktoken.py --speed build/tokenizer_speed --vocab DIR --text FILE... [--rounds 9] [--check 4]

Each round times tiktoken (one thread), then lockstep with one and with two threads, within seconds. The median ratio over rounds is
printed with its range, for wall time and for CPU time (which is less affected by other load). All must give the same number of
ids. --check R fails if a median ratio to tiktoken is below R.
"""
import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time

import compare

try:
    import tiktoken
    import tiktoken.load
    from tiktoken_ext.openai_public import r50k_pat_str
except ImportError:
    pass  # check_modules reports it

p = argparse.ArgumentParser()
p.add_argument("--speed", required=True)
p.add_argument("--vocab", required=True)
p.add_argument("--text", nargs="+", required=True)
p.add_argument("--rounds", type=int, default=9)
p.add_argument("--max-mb", type=float, default=16)
p.add_argument("--check", type=float, default=0)
a = p.parse_args()
compare.check_program(p, a.speed, "--speed")
compare.check_modules(p, "tiktoken")

ranks = tiktoken.load.data_gym_to_mergeable_bpe_ranks(os.path.join(a.vocab, "vocab.bpe"), os.path.join(a.vocab, "encoder.json"))
gpt2 = tiktoken.Encoding("gpt2", pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256})


class Ours:
    def __init__(self, path, threads):
        self.p = subprocess.Popen([a.speed, a.vocab, path, str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def end(self):
        self.p.stdin.close()
        self.p.wait()

    def __call__(self):
        self.p.stdin.write("go\n")
        self.p.stdin.flush()
        seconds, cpu, n = self.p.stdout.readline().split()
        return float(seconds), float(cpu), int(n)


def tiktoken_round(text):
    start, cpu = time.perf_counter(), time.process_time()
    n = len(gpt2.encode_ordinary(text))
    return time.perf_counter() - start, time.process_time() - cpu, n


def median(values):
    values = sorted(values)
    return statistics.median(values), f"{statistics.median(values):.2f} ({values[0]:.2f}-{values[-1]:.2f})"


print(f"{platform.machine()}, {os.cpu_count()} cores, tiktoken {tiktoken.__version__}, Python {platform.python_version()}, "
      f"{a.rounds} rounds, load {os.getloadavg()[0]:.1f} at the start\n")
print("| text | MB | tiktoken MB/s | ours, 1 thread | x tiktoken, wall | x tiktoken, CPU time | ours, 2 threads | x 1 thread, wall | "
      "CPU time of 1 thread / of 2 |")
print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
low = 0
for path in a.text:
    text = open(path, encoding="utf-8").read()[: int(a.max_mb * 1e6)]
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as part:
        part.write(text)
        part.flush()
        mb = os.path.getsize(part.name) / 1e6
        one, two = Ours(part.name, 1), Ours(part.name, 2)
        rows = []
        for r in range(a.rounds + 1):
            t, t1, t2 = tiktoken_round(text), min(one(), one()), min(two(), two())
            if not t[2] == t1[2] == t2[2]:
                sys.exit(f"{path}: {t[2]} ids by tiktoken, {t1[2]} and {t2[2]} by ours")
            if r:  # the first warms up
                rows.append((t, t1, t2))
        one.end()
        two.end()
    best = [mb / min(x[0] for x in column) for column in zip(*rows)]
    wall, wall_text = median(t[0] / t1[0] for t, t1, _ in rows)
    cpu, cpu_text = median(t[1] / t1[1] for t, t1, _ in rows)
    low += min(wall, cpu) < a.check
    print(f"| {os.path.basename(path)} | {mb:.1f} | {best[0]:.1f} | {best[1]:.1f} | {wall_text} | {cpu_text} | {best[2]:.1f} | "
          f"{median(t1[0] / t2[0] for _, t1, t2 in rows)[1]} | {median(t1[1] / t2[1] for _, t1, t2 in rows)[1]} |")
sys.exit(1 if low else 0)
