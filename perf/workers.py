"""Shared by the benchmarks with several workers: runs of lockstep, of PyTorch, of independent copies, and of memory bandwidth.

Every measurement is a separate group of processes on the first `workers * threads` cores available to this process, by NUMA node and physical core;
worker r uses the r-th share of them on both sides. At its time limit the whole group is killed. A measurement is
a dict: tokens_per_s (of all workers, from the median of the counted steps), steps (seconds), first (seconds of the
warm-up step), loss; or {"refused": message}.
"""
import glob
import json
import os
import random
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import compare

HERE = os.path.dirname(os.path.abspath(__file__))
VOCAB = {"tiny": 4096}  # small, or the classifier is all of the model
POSITIONS = {"tiny": 256}


def say(text):
    print(text, file=sys.stderr, flush=True)


def write_ids(path, model, n):
    """All ids alike often: the first loss of any fresh model is then ln(V), which shows that both sides do the same work."""
    r, vocab = random.Random(1), VOCAB.get(model, 50257)
    with open(path, "wb") as f:
        f.write(struct.pack(f"<{n}H", *(r.randrange(vocab) for _ in range(n))))


def siblings():
    """Hardware threads per core as reported by the system: two logical CPUs may share a core."""
    try:
        with open("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list") as f:
            return f.read().strip()
    except OSError:
        return "unknown"


class Budget:
    """Wall time for everything; a measurement is begun only when one like it would fit."""

    def __init__(self, seconds):
        self.begin, self.seconds, self.seen, self.out = time.monotonic(), seconds, {}, []

    def left(self):
        return self.seconds - (time.monotonic() - self.begin) if self.seconds else 1e9

    def run(self, key, f, *args, **kw):
        """f(…, limit=seconds), or None when there is no time for it."""
        if self.left() < self.seen.get(key, 1.0):
            if key not in self.out:
                say(f"  {key}: skipped, no time left ({self.left():.0f} s)")
                self.out.append(key)
            return None
        begin = time.monotonic()
        r = f(*args, limit=self.left(), **kw)
        self.seen[key] = time.monotonic() - begin
        return r


class Group:
    """Processes that are waited for together, each the head of a process group by which it is ended with all its children.

    No session of their own: Linux shares a busy machine out by session (autogroup), and a run of W workers that is one
    session would get a W-th of what W processes with a session each get.
    """

    def __init__(self):
        self.p, self.err = [], []

    def start(self, args, cores, env=None, out=subprocess.DEVNULL):
        err = tempfile.TemporaryFile()
        self.err.append(err)

        def before():
            os.setpgid(0, 0)
            os.sched_setaffinity(0, cores)
        try:
            self.p.append(subprocess.Popen([str(a) for a in args], stdout=out, stderr=err, env=env, preexec_fn=before))
        except BaseException:
            self.end()
            raise

    def wait(self, limit, enough=None):
        """Waits until all have ended, one failed, `limit` seconds passed, or enough() is true. Returns True on success."""
        end, well = time.monotonic() + limit, None
        try:
            while well is None:
                codes = [p.poll() for p in self.p]
                if any(codes):
                    well = False
                elif enough and enough():
                    well = True
                elif all(c is not None for c in codes):
                    well = True
                elif time.monotonic() > end:
                    well = False
                else:
                    time.sleep(0.05)
        finally:
            self.end()
        return well

    def end(self):
        for p in self.p:
            if p.poll() is None:
                try:
                    os.killpg(p.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        for p in self.p:
            p.wait()

    def words(self, limit=300):
        """The first output line of a failed process, or a time-out message."""
        for p, err in zip(self.p, self.err):
            err.seek(0)
            lines = [x for x in err.read().decode(errors="replace").splitlines() if x.strip()]
            if p.returncode and p.returncode != -signal.SIGKILL and lines:
                mine = [x for x in lines if x.startswith("lockstep: ")]
                return (mine or lines[-1:])[0][:limit]
        return "it did not end in the time that was left"


def cores(n):
    return compare.cpus()[:n]


def summed(tokens, times, skip=1):
    counted = times[skip:] or times
    return {"tokens_per_s": tokens / statistics.median(counted), "steps": counted, "first": times[0]}


def train_args(o, data, run, strategy, workers, threads, batch, steps):
    args = [o.lockstep, "train", "--device", "cpu", "--model", o.model, "--train_data_path", data, "--checkpoint_path", run,
            "--seq_length", o.seq,
            "--micro_batch_size_per_gpu", o.micro, "--global_batch_size", batch, "--max_steps", steps, "--dropout", 0,
            "--clip", 1.0, "--threads", threads, "-n", workers, "--strategy", strategy, "--profile_mode"]
    return args + (["--vocab_size", VOCAB[o.model]] if o.model in VOCAB else [])


def metrics(run):
    try:
        with open(os.path.join(run, "metrics.jsonl")) as f:
            return [json.loads(line) for line in f if line.endswith("\n")]
    except OSError:
        return []


def ours(o, data, work, strategy, workers, threads, batch=None, steps=None, copies=1, extra=(), env=None, limit=1e9, skip=1):
    """`lockstep train`: a run of `workers`; with copies, that many runs at once, which do not know of each other."""
    batch, steps = batch or o.global_batch, steps or o.steps
    need, each = steps + skip, workers * threads
    runs = [os.path.join(work, f"run{i}") for i in range(copies)]
    g = Group()
    for i, run in enumerate(runs):
        shutil.rmtree(run, ignore_errors=True)
        args = train_args(o, data, run, strategy, workers, threads, batch, need + 1000) + list(extra)
        mine = compare.cpus()[i * each : (i + 1) * each] or cores(each)
        g.start(args, mine, dict(os.environ, **env) if env else None)
    # stopped here when the lines are written: the checkpoint at the end of a run is not measured
    well = g.wait(limit, enough=lambda: all(len(metrics(r)) >= need for r in runs))
    rows = [metrics(r)[:need] for r in runs]
    for r in runs:
        shutil.rmtree(r, ignore_errors=True)
    if not well or not all(rows):
        return {"refused": g.words()}
    parts = [summed(batch * o.seq, [x["step_time_sec"] for x in r], skip) for r in rows]
    keys = [k for k in rows[0][0] if k.endswith("_sec") and k != "step_time_sec" and not k.startswith("tokens")]
    counted = rows[0][skip:]
    return {**parts[0], "tokens_per_s": sum(p["tokens_per_s"] for p in parts), "of_each": [p["tokens_per_s"] for p in parts],
            "loss": [x["loss"] for x in rows[0]], "split": {k: statistics.median(x[k] for x in counted) for k in keys}}


def deepspeed_folder():
    return os.environ.get("LS_DEEPSPEED", os.path.join(os.path.dirname(HERE), "build-deepspeed"))


def peer_env():
    folder, env = deepspeed_folder(), dict(os.environ)
    if os.path.isdir(folder):
        env["PYTHONPATH"] = os.pathsep.join([folder, env.get("PYTHONPATH", "")]).strip(os.pathsep)
        env["PATH"] = os.path.join(folder, "bin") + os.pathsep + env.get("PATH", "")
        env.setdefault("TORCH_EXTENSIONS_DIR", os.path.join(folder, "torch_extensions"))
    return env


def peer(o, data, work, kind, workers, threads, batch=None, steps=None, limit=1e9):
    """perf/torch_workers.py on `workers` processes: "ddp" is PyTorch's, "zero1", "zero2", "zero3" DeepSpeed's; with "-bf16" in bf16, with "-compile" compiled."""
    batch, steps = batch or o.global_batch, steps or o.steps
    all_cores, meet = cores(workers * threads), os.path.join(work, f"meet-{time.monotonic_ns()}")
    port = str(20000 + time.monotonic_ns() // 1000000 % 40000)  # a name only: DeepSpeed's shared memory bears it, and outlives it
    kind, *how = kind.split("-")
    args = [sys.executable, os.path.join(HERE, "torch_workers.py"), "--peer", kind, "--meet", meet, "--data", data,
            "--model", o.model, "--seq", o.seq, "--micro", o.micro, "--accumulation",
            batch // (workers * o.micro), "--steps", steps + 1, "--threads", threads]
    args += ["--bf16"] if "bf16" in how else []
    args += ["--compile"] if kind == "ddp" and ("compile" in how or getattr(o, "compile", False)) else []
    args += ["--no-cpp"] if kind != "ddp" and not getattr(o, "deepspeed_cpp", False) else []
    g = Group()
    with tempfile.TemporaryFile() as out:
        for r in range(workers):
            env = dict(peer_env(), RANK=str(r), WORLD_SIZE=str(workers), MASTER_PORT=port)
            g.start(args, all_cores, env, out if r == 0 else subprocess.DEVNULL)
        well = g.wait(limit)
        out.seek(0)
        lines = [x for x in out.read().decode().splitlines() if x.startswith("{")]
    for left in glob.glob(f"/dev/shm/deepspeed_*_127.0.0.1_{port}_*"):
        os.unlink(left)
    if not well or not lines:
        return {"refused": g.words()}
    r = json.loads(lines[-1])
    return {**summed(batch * o.seq, r["steps"]), "loss": r["loss"], "words": r["words"], "torch": r["torch"],
            "peak_rss": max(r["peak_rss"])}


def build_deepspeed(o, limit=300):
    """Compiles DeepSpeed's C++ parts once, before workers would do it all at once. Sets o.deepspeed_cpp; words on it."""
    g = Group()
    g.start([sys.executable, os.path.join(HERE, "torch_workers.py"), "--build-only", "--peer", "zero2", "--meet", "-",
             "--data", "-"], cores(10**6), dict(peer_env(), RANK="0", WORLD_SIZE="1"))
    begin, o.deepspeed_cpp = time.monotonic(), g.wait(limit)
    took = f"{time.monotonic() - begin:.0f} s"
    return f"its C++ parts compiled in {took}" if o.deepspeed_cpp else f"without its C++ parts ({g.words()}, {took})"


def triad(o, copies, threads, seconds=2.0, limit=1e9):
    """STREAM's triad (perf/triad.c) in `copies` processes at once: bytes/s of all."""
    program = os.path.join(os.path.dirname(os.path.abspath(o.lockstep)), "triad")
    if not os.path.exists(program):
        return {"refused": f"no {program}: build perf/triad.c"}
    g, outs = Group(), [tempfile.TemporaryFile() for _ in range(copies)]
    for i, out in enumerate(outs):
        mine = compare.cpus()[i * threads : (i + 1) * threads] or cores(threads)
        g.start([program, "--threads", threads, "--seconds", seconds], mine, out=out)
    if not g.wait(min(limit, seconds + 30)):
        return {"refused": g.words()}
    rates = []
    for out in outs:
        out.seek(0)
        rates.append(json.loads(out.read().decode())["bytes_per_s"])
    return {"bytes_per_s": sum(rates), "of_each": rates}
