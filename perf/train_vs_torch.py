"""Training speed and memory of lockstep and PyTorch on this CPU: GPT-2, fp32, no dropout, interleaved.

A round runs in sequence, each in a separate process: `lockstep train`, PyTorch eager, PyTorch compiled
(perf/torch_gpt2.py), and only the matrix products of the step in the BLAS. Both sides do the same work: forward, loss over all
rows, backward, clipping at norm 1, AdamW; the same file of ids, the same batch. The first step of a process is not counted.
The ratio of a round is the tokens/s of lockstep over the faster of eager and compiled; later rounds run only that one.

  floor    seconds of the matrix products of the linear layers and the classifier of one step in the BLAS alone (the fastest of
           OpenBLAS, BLIS and that of PyTorch); share is floor / step of lockstep. The second share includes the products
           inside attention (causal half).
  CPU      CPU seconds of all threads per step: more reliable than wall time on a shared machine, especially with --threads 1
           (waiting threads spin).
  memory   ru_maxrss of the process. The share of the PyTorch libraries is printed, too.

  python perf/train_vs_torch.py --lockstep build/lockstep [--rounds 3] [--steps 2] [--threads N] [--json]
"""
import argparse
import ctypes
import ctypes.util
import json
import os
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import compare

HERE = os.path.dirname(os.path.abspath(__file__))
VOCAB = 50257


def cpu_seconds(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            words = f.read().rsplit(")", 1)[1].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError):
        return None


def waited_for(pid, watch, marks):
    """Status and usage of the process when it has ended; adds to marks."""
    while watch:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        if done:
            return status, usage
        try:
            with open(watch) as f:
                lines = f.read().count("\n")
        except OSError:
            lines = 0
        used = cpu_seconds(pid) if lines > len(marks) else None
        if used is not None:
            marks += [used] * (lines - len(marks))
        time.sleep(0.02)
    return os.wait4(pid, 0)[1:]


def run_child(args, env=None, watch=None):
    """Output, words of failure, peak resident bytes; with watch, the CPU seconds used when each line of that file appeared."""
    marks = []
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        p = subprocess.Popen([str(a) for a in args], stdout=out, stderr=err, env=env)
        try:
            status, usage = waited_for(p.pid, watch, marks)
        except BaseException:
            p.kill()
            p.wait()
            raise
        p.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        return {"rc": p.returncode, "out": out.read().decode(), "err": err.read().decode(errors="replace"),
                "rss": usage.ru_maxrss * 1024, "marks": marks}


def write_ids(path, n):
    """All ids alike often: the first loss of any fresh model is then ln(V), which shows that both sides do the same work."""
    r = random.Random(1)
    ids = [r.randrange(VOCAB) for _ in range(n)]
    with open(path, "wb") as f:
        f.write(struct.pack(f"<{n}H", *ids))


def ours(o, data, work):
    run = os.path.join(work, "run")
    shutil.rmtree(run, ignore_errors=True)
    args = [o.lockstep, "train", "--device", "cpu", "--model", o.model, "--train_data_path", data, "--checkpoint_path", run,
            "--seq_length", o.seq,
            "--micro_batch_size_per_gpu", o.batch, "--grad_accum_steps", 1, "--max_steps", o.steps + 1, "--dropout", 0,
            "--clip", 1.0, "--threads", o.threads]
    r = run_child(args, watch=os.path.join(run, "metrics.jsonl"))
    if r["rc"]:
        raise SystemExit(f"lockstep failed ({r['rc']}): {r['err'][-2000:]}")
    with open(os.path.join(run, "metrics.jsonl")) as f:
        rows = [json.loads(line) for line in f]
    shutil.rmtree(run, ignore_errors=True)
    cpu = [b - a for a, b in zip(r["marks"], r["marks"][1:])]
    return {"steps": [x["step_time_sec"] for x in rows[1:]], "cpu": cpu, "loss": [x["loss"] for x in rows], "rss": r["rss"]}


def peer(o, data, mode):
    args = [sys.executable, os.path.join(HERE, "torch_gpt2.py"), "--data", data, "--model", o.model, "--batch", o.batch, "--seq",
            o.seq, "--steps", o.steps, "--threads", o.threads] + (["--compile"] if mode == "compile" else [])
    r = run_child(args)
    if r["rc"]:
        last = (r["err"].strip().splitlines() or ["no words"])[-1]
        print(f"PyTorch {mode} does not run here: {last}", file=sys.stderr)
        return None
    return {**json.loads(r["out"].strip().splitlines()[-1]), "rss": r["rss"]}


# ---- the floor: products alone ------------------------------------------------------------------------------------------

def products(model, rows, seq):
    """(count, M, N, K, A transposed, B transposed) of one step; attention's apart."""
    L, H, C, _ = compare.SIZES[model]
    linear = []
    for k, n in ((C, 3 * C), (C, C), (C, 4 * C), (4 * C, C)):
        linear += [(L, rows, n, k, 0, 0), (L, rows, k, n, 0, 1), (L, k, n, rows, 1, 0)]
    linear += [(1, rows, VOCAB, C, 0, 1), (1, rows, C, VOCAB, 0, 0), (1, VOCAB, C, rows, 1, 0)]
    heads, d = L * H * (rows // seq), C // H
    # q k^T twice (backward makes it again), p v, dv = p^T do, dp = do v^T, dq = ds k, dk = ds^T q; the causal half of each
    attention = [(heads * 3 / 2, seq, seq, d, 0, 1), (heads * 2 / 2, seq, d, seq, 0, 0), (heads * 2 / 2, seq, d, seq, 1, 0)]
    return linear, attention


def sgemm_of(library, threads):
    """A callable f(M, N, K, ta, tb, a, b, c) over row-major float buffers, or None."""
    if library == "torch":
        try:
            import torch
        except ImportError:
            return None
        torch.set_num_threads(threads)

        def mm(M, N, K, ta, tb, a, b, c):
            x = torch.frombuffer(a, dtype=torch.float32, count=M * K).view((K, M) if ta else (M, K))
            y = torch.frombuffer(b, dtype=torch.float32, count=K * N).view((N, K) if tb else (K, N))
            z = torch.frombuffer(c, dtype=torch.float32, count=M * N).view(M, N)
            torch.mm(x.T if ta else x, y.T if tb else y, out=z)
        return mm
    name = ctypes.util.find_library(library)
    if not name:
        return None
    f = ctypes.CDLL(name).cblas_sgemm
    i, p = ctypes.c_int, ctypes.c_void_p
    f.argtypes = [i] * 6 + [ctypes.c_float, p, i, p, i, ctypes.c_float, p, i]

    def mm(M, N, K, ta, tb, a, b, c):
        f(101, 112 if ta else 111, 112 if tb else 111, M, N, K, 1.0, ctypes.addressof(a), M if ta else K, ctypes.addressof(b),
          K if tb else N, 0.0, ctypes.addressof(c), N)
    return mm


def floor_child(library, threads, model, rows, seq):
    """Seconds of one step's products: each shape three times, the best counts. Prints JSON."""
    mm = sgemm_of(library, threads)
    if not mm:
        raise SystemExit(f"{library} is not available")
    linear, attention = products(model, rows, seq)
    largest = [max(f(s) for s in linear + attention)
               for f in (lambda s: s[1] * s[3], lambda s: s[3] * s[2], lambda s: s[1] * s[2])]
    buffers = []
    for n in largest:
        b = (ctypes.c_float * n)()
        view = memoryview(b).cast("B")
        chunk = struct.pack("1024f", *(((j * 37) % 101) / 101 - 0.5 for j in range(1024)))
        for at in range(0, len(view), len(chunk)):
            view[at : at + len(chunk)] = chunk[: len(view) - at]
        buffers.append(b)

    def seconds(shapes):
        total, total_cpu = 0.0, 0.0
        for count, M, N, K, ta, tb in shapes:
            best = best_cpu = 1e9
            calls = max(1, int(2e8 / (M * N * K)))  # small ones many times, against the clock's grain
            for _ in range(3):
                begin, used = time.perf_counter(), time.process_time()
                for _ in range(calls):
                    mm(M, N, K, ta, tb, *buffers)
                best = min(best, (time.perf_counter() - begin) / calls)
                best_cpu = min(best_cpu, (time.process_time() - used) / calls)
            total += count * best
            total_cpu += count * best_cpu
        return total, total_cpu
    (a, a_cpu), (b, b_cpu) = seconds(linear), seconds(attention)
    print(json.dumps({"library": library, "linear": a, "attention": b, "linear_cpu": a_cpu, "attention_cpu": b_cpu}))


def floor(o, libraries):
    env = dict(os.environ, OPENBLAS_NUM_THREADS=str(o.threads), BLIS_NUM_THREADS=str(o.threads), OMP_NUM_THREADS=str(o.threads))
    found = []
    for name in libraries:
        r = run_child([sys.executable, os.path.abspath(__file__), "--floor", name, "--threads", o.threads, "--model", o.model,
                       "--batch", o.batch, "--seq", o.seq], env)
        if not r["rc"]:
            found.append(json.loads(r["out"].strip().splitlines()[-1]))
    return found


# ---- rounds -------------------------------------------------------------------------------------------------------------

def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("--lockstep", default="build/lockstep")
    a.add_argument("--model", default="gpt2", choices=sorted(set(compare.SIZES) - {"tiny"}))
    a.add_argument("--batch", type=int, default=4)
    a.add_argument("--seq", type=int, default=512)
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--steps", type=int, default=2, help="timed steps per process, after one warm-up step")
    a.add_argument("--threads", type=int, default=0, help="threads; 0 = all cores")
    a.add_argument("--no-compile", action="store_true", help="compare with eager mode only")
    a.add_argument("--every-mode", action="store_true", help="run eager and compiled mode in every round")
    a.add_argument("--no-floor", action="store_true")
    a.add_argument("--json", action="store_true")
    a.add_argument("--floor", help=argparse.SUPPRESS)
    o = a.parse_args()
    o.threads = o.threads or compare.cores()
    if o.floor:
        return floor_child(o.floor, o.threads, o.model, o.batch * o.seq, o.seq)
    compare.check_program(a, o.lockstep)
    compare.check_modules(a, "torch", "numpy")
    compare.end_on_sigterm()
    tokens = o.batch * o.seq
    modes = ["eager"] if o.no_compile else ["eager", "compile"]
    libraries = [] if o.no_floor else ["openblas", "blis", "torch"]
    begin = compare.load()
    rounds, best_rss, torch_words = [], {}, ""

    def say(text):
        print(text, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="lockstep-train-") as work:
        data = os.path.join(work, "ids.bin")
        write_ids(data, tokens * (o.steps + 2) + 1)
        for number in range(o.rounds):
            mine = ours(o, data, work)
            row = {"ours": tokens / statistics.median(mine["steps"]), "ours_rss": mine["rss"], "ours_loss": mine["loss"],
                   "ours_cpu": statistics.median(mine["cpu"]) if mine["cpu"] else None}
            say(f"round {number + 1}: ours {row['ours']:.1f} tokens/s, {mine['rss'] / 1e9:.2f} GB, CPU seconds per step "
                f"{', '.join(f'{x:.1f}' for x in mine['cpu'])}")
            for mode in list(modes):
                p = peer(o, data, mode)
                if not p:
                    modes.remove(mode)
                    continue
                torch_words = f"torch {p['torch']}, AdamW {p['adamw']}"
                row[mode] = tokens / statistics.median(p["steps"])
                row[mode + "_cpu"] = statistics.median(p["cpu"])
                row[mode + "_rss"], row["libraries_rss"] = p["rss"], p["rss_of_libraries"]
                if abs(p["loss"][0] - mine["loss"][0]) > 0.2:
                    raise SystemExit(f"runs are not comparable: first losses {mine['loss'][0]:.3f} and {p['loss'][0]:.3f}")
                say(f"         {mode} {row[mode]:.1f} tokens/s, {p['rss'] / 1e9:.2f} GB, CPU seconds per step "
                    f"{', '.join(f'{x:.1f}' for x in p['cpu'])}")
            if not modes:
                raise SystemExit("PyTorch does not run here; nothing to compare with")
            found = floor(o, libraries)
            if found:
                f = min(found, key=lambda x: x["linear"])
                libraries = [f["library"]]
                step = tokens / row["ours"]
                row.update(blas=f["library"], floor=f["linear"], share=f["linear"] / step,
                           share_with_attention=(f["linear"] + f["attention"]) / step, floor_cpu=f["linear_cpu"])
                say(f"         products alone in {f['library']}: {f['linear']:.2f} s of our {step:.2f} s; CPU "
                    f"{f['linear_cpu']:.2f} s")
            if not o.every_mode:
                modes = [max(modes, key=lambda m: row[m])]
            row["ratio"] = row["ours"] / max(row[m] for m in ("eager", "compile") if m in row)
            rounds.append(row)
    ratios = [r["ratio"] for r in rounds]
    for mode in ("eager", "compile"):
        values = [r[mode + "_rss"] for r in rounds if mode in r]
        if values:
            best_rss[mode] = statistics.median(values)
    mine = max(r["ours_rss"] for r in rounds)
    fastest = modes[0] if len(modes) == 1 else max(
        (m for m in modes), key=lambda m: statistics.median(r[m] for r in rounds if m in r))
    memory = {m: mine / v for m, v in best_rss.items()}
    result = {"machine": compare.machine(), "threads": o.threads, "load": begin, "peer": torch_words, "model": o.model,
              "batch": o.batch, "seq": o.seq, "steps": o.steps, "rounds": rounds, "best_mode": fastest,
              "median_ratio": statistics.median(ratios), "interval_95": compare.interval(ratios), "memory_ratio": memory}
    if o.json:
        print(json.dumps(result, indent=2))
        return
    middle = {k: statistics.median(r[k] for r in rounds if k in r)
              for k in ("ours", "eager", "compile", "floor", "share", "share_with_attention") if any(k in r for r in rounds)}
    print(f"{o.model}, B{o.batch} x T{o.seq}, fp32, {o.threads} threads, {result['machine']}; {torch_words}; {begin}")
    print(f"ours      {middle['ours']:.1f} tokens/s, peak {mine / 1e9:.2f} GB")
    for mode in ("eager", "compile"):
        if mode in middle:
            print(f"{mode:9} {middle[mode]:.1f} tokens/s, peak {best_rss[mode] / 1e9:.2f} GB "
                  f"(libraries {rounds[0]['libraries_rss'] / 1e9:.2f} GB): memory ratio {memory[mode]:.2f}")
    print(f"ratio     {compare.describe(ratios)} (against {fastest})")
    if "floor" in middle:
        print(f"floor     {middle['floor']:.2f} s in {rounds[-1].get('blas')}: share {middle['share']:.2f}, "
              f"with attention's products {middle['share_with_attention']:.2f}")


if __name__ == "__main__":
    main()
