#!/usr/bin/env python3
"""Measures `lockstep prepare` on a generated corpus of JSON lines, compressed with zstd: rate by threads, CPU time and its parts, and peak memory.

    perf/prepare_scale.py --gigabytes 10 --threads 1 2 4 8 16 --rounds 3 --work DIR

The text is made from words with a Zipf distribution, new words included, so that the tokenizer's cache of words has hits and misses as in real
text. The corpus is split into files of --file-mb of text, each one zstd stream of the command `zstd` (without the command: of the library, one
frame per 16 MB). Rounds alternate between the thread counts; the first table has the median and the range of the wall time, and the CPU
time, which other work on the machine changes less.

The second table tells what limits more threads. Reading (unpacking, finding lines) is the work of one thread per file; `serial` is the time of the
first thread to consume results, which no other thread can do: threads x rate of one thread cannot exceed CPU / serial. `threads busy` is the average
number of threads that were reading, processing or writing and not waiting for each other; with more threads than cores it still shows whether
threads wait. Results are Markdown; all token files are compared with those of the first run."""
import argparse
import ctypes
import ctypes.util
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import time

import compare

here = pathlib.Path(__file__).resolve().parent
p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("--gigabytes", type=float, default=2.0, help="text before compression, in 10^9 bytes")
p.add_argument("--threads", type=int, nargs="+", default=[1, 2])
p.add_argument("--rounds", type=int, default=3)
p.add_argument("--file-mb", type=int, default=256, help="text per file, in 10^6 bytes")
p.add_argument("--work", required=True, help="folder for the corpus and the results; the corpus is reused")
p.add_argument("--tokenizer", default="train", help="as for prepare; train: a vocabulary of 32,000 from the first 64 MiB")
p.add_argument("--lockstep", default=str(here.parent / "build" / "lockstep"))
p.add_argument("--options", nargs="*", default=[], help="more options of prepare, without the dashes: dedup min-chars=10")
a = p.parse_args()
compare.check_program(p, a.lockstep)
work = pathlib.Path(a.work)
FILE = a.file_mb * 10**6
BLOCK = min(16 * 10**6, FILE)


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


def pack(path, blocks):
    """One file of the blocks."""
    if shutil.which("zstd"):
        with subprocess.Popen(["zstd", "-q", "-f", "-3", "-T2", "-o", str(path)], stdin=subprocess.PIPE) as z:
            for b in blocks:
                z.stdin.write(b)
        return
    lib = ctypes.CDLL(ctypes.util.find_library("zstd") or "libzstd.so.1")
    lib.ZSTD_compressBound.restype = lib.ZSTD_compress.restype = ctypes.c_size_t
    with open(path, "wb") as f:
        for b in blocks:
            out = ctypes.create_string_buffer(lib.ZSTD_compressBound(ctypes.c_size_t(len(b))))
            n = lib.ZSTD_compress(out, ctypes.c_size_t(len(out)), b, ctypes.c_size_t(len(b)), 3)
            f.write(out.raw[:n])


def make_corpus():
    """Four blocks, repeated, so that making it does not take longer than measuring: unknown to the tokenizer, but known to --dedup. The files
    are copies of four."""
    folder = work / f"corpus-{a.gigabytes:g}-{a.file_mb}"
    if (folder / "done").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    r = random.Random(1)
    words = ["".join(r.choices("etaoinshrdlucmfwypvbgkqjxz", k=max(1, int(r.gauss(5, 2))))) for _ in range(60000)]
    weights, total = [], 0.0
    for k in range(len(words)):
        total += 1 / (k + 3)
        weights.append(total)
    blocks = [make_block(r, words, weights, BLOCK) for _ in range(4)]
    n_file = max(1, round(a.gigabytes * 1e9 / FILE))
    for k in range(n_file):
        path = folder / f"part{k:04d}.jsonl.zst"
        if k < 4:
            pack(path, [blocks[(k + i) % 4] for i in range(FILE // BLOCK)])
        else:
            shutil.copyfile(folder / f"part{k % 4:04d}.jsonl.zst", path)
    (folder / "done").touch()
    return folder


def digest(folder):
    """Of all files but meta.json, which has the command."""
    h = hashlib.sha256()
    for f in sorted(pathlib.Path(folder).iterdir()):
        if f.name != "meta.json":
            h.update(f.name.encode())
            with open(f, "rb") as data:
                while chunk := data.read(1 << 22):
                    h.update(chunk)
    return h.hexdigest()


NUMBERS = (r"CPU seconds: ([0-9.]+) reading, ([0-9.]+) processing, ([0-9.]+) through files, ([0-9.]+) writing in the first thread; "
           r"([0-9.]+) of \d+ threads busy; up to (\d+) files at a time, (\d+) of (\d+) blocks")


def run(words, out):
    """Wall seconds, CPU seconds, peak MiB, the numbers of the log and the summary."""
    subprocess.run(["rm", "-rf", out, out + ".partial"], check=True)
    start = time.monotonic()
    with open(work / "out.json", "w") as f, open(work / "err.txt", "w") as e:
        job = subprocess.Popen([*words, "--out", out, "--json", "--quiet"], stdout=f, stderr=e, env={**os.environ, "LS_LOG": "data=debug"})
    _, status, used = os.wait4(job.pid, 0)
    wall = time.monotonic() - start
    log = (work / "err.txt").read_text()
    assert status == 0, log[-500:]
    numbers = list(map(float, re.findall(NUMBERS, log)[-1]))
    return wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, numbers, json.loads((work / "out.json").read_text())


maker = os.fork()  # the peak memory of a process counts that of the one that started it
if maker == 0:
    make_corpus()
    os._exit(0)
assert os.waitpid(maker, 0)[1] == 0
corpus = make_corpus()
packed = sum(f.stat().st_size for f in corpus.glob("*.zst"))
vocabulary = a.tokenizer
base = [a.lockstep, "prepare", str(corpus), "--text_key", "content"]
if a.tokenizer == "train":
    vocabulary = str(work / "vocabulary")
    if not os.path.exists(vocabulary):
        subprocess.run([*base, "--tokenizer", "train", "--vocab_size", "32000", "--train_mb", "64", "--limit_docs", "20000", "--out", vocabulary,
                        "--quiet"], check=True, stdout=subprocess.DEVNULL)
base += ["--tokenizer", vocabulary, *["--" + o for o in a.options]]
results = {t: [] for t in a.threads}
files = None
load = os.getloadavg()[0]
for k in range(a.rounds):
    for t in a.threads if k % 2 == 0 else reversed(a.threads):
        results[t].append(run([*base, "--threads", str(t)], str(work / "out")))
        same = digest(work / "out")
        files = files or same
        assert files == same, f"{t} threads wrote other files"
        print(f"round {k + 1}, {t} threads: {results[t][-1][0]:.1f} s wall, {results[t][-1][1]:.1f} s CPU", flush=True)
text = results[a.threads[0]][0][4]["text_bytes"]
one = min(x[0] for x in results[a.threads[0]])
print(f"\ncorpus: {text / 1e9:.2f} GB of text in {packed / 1e9:.2f} GB of jsonl.zst, {len(list(corpus.glob('*.zst')))} files; load before: {load:.1f}\n")
print("| threads | wall s, median (range) | MB of text per s, best | x threads x one thread, best | CPU s, median | peak MiB |")
print("| --- | --- | --- | --- | --- | --- |")
for t, x in results.items():
    wall, cpu, memory = ([y[i] for y in x] for i in range(3))
    share = one * a.threads[0] / (min(wall) * t)
    print(f"| {t} | {statistics.median(wall):.1f} ({min(wall):.1f}-{max(wall):.1f}) | {text / min(wall) / 1e6:.1f} | {share:.2f} | "
          f"{statistics.median(cpu):.1f} | {max(memory):.0f} |")
print("\n| threads | reading CPU s | processing CPU s | through files CPU s | serial CPU s | CPU / serial | threads busy | files at a time | blocks "
      "through files |")
print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
for t, x in results.items():
    read, process, spill, serial, busy, wide, spilled, n = (statistics.median(y[3][i] for y in x) for i in range(8))
    print(f"| {t} | {read:.2f} | {process:.2f} | {spill:.2f} | {serial:.2f} | {(read + process + spill + serial) / serial:.0f} | {busy:.1f} | {wide:.0f} | "
          f"{100 * spilled / n:.0f} % |")
