#!/usr/bin/env python3
"""Measures `lockstep prepare` on a generated corpus of JSON lines, compressed with zstd: rate by threads, CPU time, the part of it that is
serial (reading and writing, in the first thread), and peak memory.

    perf/prepare_scale.py --gigabytes 2 --threads 1 2 --rounds 3 --work DIR

The text is made from words with a Zipf distribution, new words included, so that the tokenizer's cache of words has hits and misses as in real
text. The corpus is split into files of 256 MB of text. Rounds alternate between the thread counts; the table has the median and the range of the
wall time, and the CPU time, which other work on the machine changes less. Results are Markdown."""
import argparse
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import time

here = pathlib.Path(__file__).resolve().parent
p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("--gigabytes", type=float, default=2.0, help="text before compression, in 10^9 bytes")
p.add_argument("--threads", type=int, nargs="+", default=[1, 2])
p.add_argument("--rounds", type=int, default=3)
p.add_argument("--work", required=True, help="folder for the corpus and the results; the corpus is reused")
p.add_argument("--tokenizer", default="train", help="as for prepare; train: a vocabulary of 32,000 from the first 64 MiB")
p.add_argument("--lockstep", default=str(here.parent / "build" / "lockstep"))
p.add_argument("--options", nargs="*", default=[], help="more options of prepare, without the dashes: dedup min-chars=10")
a = p.parse_args()
work = pathlib.Path(a.work)
FILE = 256 * 10**6


def make_block(r, words, weights, nbytes):
    """JSON lines of about nbytes."""
    out, size = [], 0
    while size < nbytes:
        text = r.choices(words, cum_weights=weights, k=r.randrange(50, 1200))
        for i in range(0, len(text), 97):
            text[i] = "".join(r.choices("etaoinshrdlucmfwyp", k=r.randrange(3, 12)))  # words that no cache has
        line = json.dumps({"id": r.randrange(10**9), "content": " ".join(text) + ".", "url": "https://example.org/x"}) + "\n"
        out.append(line)
        size += len(line)
    return "".join(out).encode()


def make_corpus():
    """Four blocks of 16 MB, repeated, so that making it does not take longer than measuring: unknown to the tokenizer, but known to --dedup."""
    folder = work / f"corpus-{a.gigabytes:g}"
    if (folder / "done").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    r = random.Random(1)
    words = ["".join(r.choices("etaoinshrdlucmfwypvbgkqjxz", k=max(1, int(r.gauss(5, 2))))) for _ in range(60000)]
    weights, total = [], 0.0
    for k in range(len(words)):
        total += 1 / (k + 3)
        weights.append(total)
    blocks = [make_block(r, words, weights, 16 * 10**6) for _ in range(4)]
    left = int(a.gigabytes * 1e9)
    for k in range(10**6):
        if left <= 0:
            break
        with subprocess.Popen(["zstd", "-q", "-3", "-T2", "-o", str(folder / f"part{k:04d}.jsonl.zst")], stdin=subprocess.PIPE) as z:
            for i in range(min(left, FILE) // (16 * 10**6) + 1):
                z.stdin.write(blocks[(k + i) % 4])
        left -= FILE
    (folder / "done").touch()
    return folder


def run(words, out):
    """Wall seconds, CPU seconds, peak MiB, serial CPU seconds and the summary."""
    subprocess.run(["rm", "-rf", out, out + ".partial"], check=True)
    start = time.monotonic()
    with open(work / "out.json", "w") as f, open(work / "err.txt", "w") as e:
        job = subprocess.Popen([*words, "--out", out, "--json", "--quiet"], stdout=f, stderr=e, env={**os.environ, "LS_LOG": "data=debug"})
    _, status, used = os.wait4(job.pid, 0)
    wall = time.monotonic() - start
    log = (work / "err.txt").read_text()
    assert status == 0, log[-500:]
    serial = sum(map(float, re.findall(r"first thread: ([0-9.]+) reading, ([0-9.]+) writing", log)[-1]))
    return wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, serial, json.loads((work / "out.json").read_text())


corpus = make_corpus()
packed = sum(f.stat().st_size for f in corpus.glob("*.zst"))
vocabulary = a.tokenizer
base = [a.lockstep, "prepare", str(corpus), "--text-key", "content"]
if a.tokenizer == "train":
    vocabulary = str(work / "vocabulary")
    if not os.path.exists(vocabulary):
        subprocess.run([*base, "--tokenizer", "train", "--vocab-size", "32000", "--train-mb", "64", "--limit-docs", "20000", "--out", vocabulary,
                        "--quiet"], check=True, stdout=subprocess.DEVNULL)
base += ["--tokenizer", vocabulary, *["--" + o for o in a.options]]
results = {t: [] for t in a.threads}
load = os.getloadavg()[0]
for k in range(a.rounds):
    for t in a.threads if k % 2 == 0 else reversed(a.threads):
        results[t].append(run([*base, "--threads", str(t)], str(work / "out")))
        print(f"round {k + 1}, {t} threads: {results[t][-1][0]:.1f} s wall, {results[t][-1][1]:.1f} s CPU", flush=True)
text = results[a.threads[0]][0][4]["text_bytes"]
one = min(x[0] for x in results[a.threads[0]])
print(f"\ncorpus: {text / 1e9:.2f} GB of text in {packed / 1e9:.2f} GB of jsonl.zst, {len(list(corpus.glob('*.zst')))} files; load before: {load:.1f}\n")
print("| threads | wall s, median (range) | MB of text per s, best | x threads x one thread, best | CPU s, median | serial CPU s, median | peak MiB |")
print("| --- | --- | --- | --- | --- | --- | --- |")
for t, x in results.items():
    wall, cpu, memory, serial = ([y[i] for y in x] for i in range(4))
    share = one * a.threads[0] / (min(wall) * t)
    print(f"| {t} | {statistics.median(wall):.1f} ({min(wall):.1f}-{max(wall):.1f}) | {text / min(wall) / 1e6:.1f} | {share:.2f} | "
          f"{statistics.median(cpu):.1f} | {statistics.median(serial):.2f} | {max(memory):.0f} |")
