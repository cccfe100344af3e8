#!/usr/bin/env python3
"""What an idle supervisor, audits and asynchronous checkpoints cost: runs with and without them, in turns.

    perf/idle_cost.py [LOCKSTEP] [--device cpu|cuda] [--only supervisor audit_idle audit audit_step save] [--seconds 150] [--processes 4] [--rounds 4] [--threads N]

    supervisor   train --max_restarts 3, no failure              bar: 0.5 % of throughput
    audit_idle   train --audit 100000, no audit in the run       bar: 0.5 %
    audit        train --audit 100, one audit in the run         bar: 1 %
    audit_step   train --audit 50: what an audit adds to the steps without one beside it, as a share of 100 of them; bar: 1 %. Layouts: ddp of 2 and one worker, with one
                 micro-batch per worker and step (an audit repeats all of it: the most that it can cost) and with 4
    save         train --save_async, a checkpoint in about 20 s  bar: 1 %; on CPUs a model of 33 M parameters

On CPUs the runs have 2 workers with a small model. On a GPU they have one, with GPT-2 124M in bf16 and T1024; supervisor, audit_idle and save only.

supervisor and audit_idle do the same in every step, so all runs are alive at the same time and take turns of --turn seconds (SIGSTOP and SIGCONT of all their processes) for
--seconds seconds in all. Of a turn, the steps count that lie in it as a whole, except the first two. There are --processes groups, each a plain run and one per option; turns of a
group that are next to each other give ratios. Two processes of the same program may differ for as long as they live (memory that the system gave them), so a pair of runs is one sample, its mean
ratio; the interval is that of the pairs. Control: the plain runs of neighbouring groups, in the same way; it shows what the method itself finds where there is nothing.

audit_step needs no second run: of the 4 steps up to an audit, the first two have none, the third ends with the hash of the state, and the fourth repeats the pass and hashes again. The cost is that of
the last two less that of the first two; audits are the samples (--audits of them per round).

save on a GPU needs no second run either: of three parts of the run, each --save_steps steps, the second and third begin with a save. What they take beyond the first is the cost of two saves, everything
included that delays a step; it is printed in milliseconds and as a share of 20 s.

For the rest, every round runs a variant and the plain run next to each other in both orders (plain, variant, variant, plain), so that a machine which becomes slower or
faster during a round hits both alike; each half is a ratio. Printed are the geometric mean of the ratios and its interval of 95 % (t distribution), of
the wall time of steps and of all CPU seconds of the run, its start included. The wall time is that of the epoch without its first two steps. All runs of a model must end
with the same weights.

A bar is met if the whole interval is below it, and missed if it is above; else there are too few samples. The defaults should take about 12 minutes on two quiet cores of a server."""
import argparse
import concurrent.futures
import hashlib
import itertools
import json
import math
import os
import random
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import compare

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("lockstep", nargs="?", default=os.environ.get("LOCKSTEP", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "build", "lockstep")))
p.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
p.add_argument("--threads", type=int, help="of each worker on CPUs; default: its share of all cores")
p.add_argument("--seconds", type=float, default=150, help="of supervisor and audit_idle together")
p.add_argument("--processes", type=int, default=4, help="of supervisor and audit_idle: runs of each kind, at least 2")
p.add_argument("--copies", type=int, default=1, help="of supervisor and audit_idle on CPUs: so many measurements at the same time, each on two cores of its own")
p.add_argument("--idle_size", default="2,4,128,64,2", help="--size of supervisor and audit_idle on CPUs: short steps, of which a turn has many")
p.add_argument("--turn", type=float, default=0.5, help="seconds of a turn of supervisor and audit_idle")
p.add_argument("--batch", type=int, help="sequences of a step on a GPU; default: 8, and 32 of save")
p.add_argument("--rounds", type=int, default=4, help="of audit and audit_step")
p.add_argument("--steps", type=int, default=101)
p.add_argument("--audits", type=int, default=20, help="of a run of audit_step")
p.add_argument("--size", default="4,4,128,128,2", help="layers, heads, width, sequence length, sequences of a step")
p.add_argument("--save_rounds", type=int, default=3)
p.add_argument("--save_steps", type=int, help="default: 13; on a GPU 140")
p.add_argument("--save_size", default="9,8,512,128,4")
p.add_argument("--only", nargs="*", choices=["supervisor", "audit", "audit_step", "audit_idle", "save"])
a = p.parse_args()
compare.check_program(p, a.lockstep, "the first argument")
GPU = a.device == "cuda"
a.only = a.only or ["supervisor", "audit_idle", "save"] + ["audit", "audit_step"] * (not GPU)
a.save_steps = a.save_steps or (140 if GPU else 13)
if min(a.rounds, a.save_rounds) < 1:
    p.error("an interval needs at least one round")
if a.processes * a.copies < 2:
    p.error("an interval needs at least two pairs of runs (--processes)")
if a.steps < 100 and "audit" in a.only:
    p.error("--steps: an audit of every 100 steps needs 100 or more")
if GPU and (a.copies > 1 or set(a.only) & {"audit", "audit_step"}):
    p.error("on a GPU: supervisor, audit_idle and save, and one copy")

IDLE = {"supervisor": ["--max_restarts", "3"], "audit_idle": ["--audit", "100000"]}
VARIANTS = {
    "audit": (["--audit", "100"], 0.01, a.rounds, a.steps, a.size),
    "save": (["--save_every", str(a.save_steps * 2 // 3), "--save_async"], 0.01, a.save_rounds, a.save_steps, a.save_size),
}


def command(data, folder, size, steps, options):
    if GPU:
        B = str(a.batch or (32 if "--save_async" in options else 8))
        return [a.lockstep, "train", "--train_data_path", os.path.join(data, "train.bin"), "--device", "cuda", "--precision", "bf16", "--model", "gpt2", "--seq_length", "1024",
                "--micro_batch_size_per_gpu", B, "--global_batch_size", B, "--max_steps", str(steps), "--dropout", "0", "--checkpoint_path", folder, *options]
    L, H, C, T, B = size.split(",")
    threads = ["--threads", str(a.threads)] if a.threads else []
    return [a.lockstep, "train", "--data", data, "--device", "cpu", "--model", "gpt2", "--vocab_size", "8192", "--num_layers", L, "--num_heads", H,
            "--embedding_size", C, "--seq_length", T, "--micro_batch_size_per_gpu", "1", "--global_batch_size", B, "--max_steps", str(steps),
            "--dropout", "0", "-n", "2", "--strategy", "ddp", "--checkpoint_path", folder, *threads, *options]


def run(work, options, steps, size):
    """Wall seconds of the steps, CPU seconds of all processes, hash of the weights."""
    folder = os.path.join(work, "run")
    shutil.rmtree(folder, ignore_errors=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command(data, folder, size, steps, options), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(options) or 'plain'}: exit code {done.returncode}\n{done.stdout[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    with open(os.path.join(folder, "epoch-1", "timings.json")) as f:
        wall = json.load(f)["epochs_done"][0]["wall_time"]
    with open(os.path.join(folder, "metrics.jsonl")) as f:
        wall -= sum(json.loads(line)["step_time_sec"] for line in f.readlines()[:2])
    with open(os.path.join(folder, "epoch-1", "model.safetensors"), "rb") as f:
        weights = hashlib.sha256(f.read()).hexdigest()
    if "--save_every" in options and not any(x.startswith("step-") for x in os.listdir(folder)):
        sys.exit("no checkpoint was saved during the run")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, weights


class Alive:
    """A run that goes on only in its turns."""

    def __init__(self, work, name, options, cores):
        self.name, self.folder, self.turns = name, os.path.join(work, name), []
        self.log = open(os.path.join(work, name + ".log"), "w+")
        self.process = subprocess.Popen(cores + command(data, self.folder, a.idle_size, 10**7, ["--epochs", "100000", "--save_every", "0", *options]), stdout=self.log,
                                        stderr=self.log)

    def members(self):
        """The process and all that it started, itself first."""
        found, parents = [self.process.pid], {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat") as f:
                    parents[int(pid)] = int(f.read().rsplit(")", 1)[1].split()[1])
            except OSError:
                pass  # it has ended
        for pid in found:
            found += [c for c, of in parents.items() if of == pid]
        return found

    def tell(self, number):
        if self.process.poll() is not None:
            self.log.seek(0)
            sys.exit(f"{self.name}: the run ended by itself\n{self.log.read()[-2000:]}")
        for pid in self.members():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def begin(self):
        """Until it has made 20 steps; then it waits."""
        limit = time.time() + 120
        while self.process.poll() is None and len(self.lines()) < 20:
            if time.time() > limit:
                sys.exit(f"{self.name}: no 20 steps in 120 s")
            time.sleep(0.05)
        self.tell(signal.SIGSTOP)

    def lines(self):
        try:
            with open(os.path.join(self.folder, "metrics.jsonl")) as f:
                return f.readlines()
        except OSError:
            return []

    def turn(self):
        begin = time.time()
        self.tell(signal.SIGCONT)
        time.sleep(a.turn)
        end = time.time()
        self.tell(signal.SIGSTOP)
        if GPU:
            time.sleep(0.1)  # what is queued runs on
        self.turns.append((begin, end))

    def per_step(self):
        """Of every turn the mean and the median step in seconds; None: too few steps."""
        steps = [json.loads(x) for x in self.lines() if x.endswith("\n")]
        steps = [(s["time_unix_ms"] / 1e3 - s["step_time_sec"], s["time_unix_ms"] / 1e3, s["step_time_sec"]) for s in steps]
        out, k = [], 0
        for begin, end in self.turns:
            while k < len(steps) and steps[k][0] < begin:
                k += 1
            inside = []
            while k < len(steps) and steps[k][1] <= end:
                inside.append(steps[k][2])
                k += 1
            out.append((sum(inside[2:]) / len(inside[2:]), statistics.median(inside[2:])) if len(inside) > 6 else None)
        return out

    def end(self):
        for pid in reversed(self.members()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()
        self.log.close()


def idle(work, names, cores):
    """For every name the ratios (mean step, median step) of the runs with the option to the plain run of their group; control: of a plain run to that of the next group.
    Each is the mean over turns."""
    os.makedirs(work, exist_ok=True)
    groups = []
    try:
        for k in range(a.processes):
            groups.append([])
            for name in ["plain", *names]:
                groups[-1].append(Alive(work, f"{name}-{k}", IDLE.get(name, []), cores))
                groups[-1][-1].begin()
        end, k = time.time() + a.seconds, 0
        while time.time() < end and not stopped:
            for i, group in enumerate(groups):
                at = (k + i) // 2 % len(group)
                for s in (group[at:] + group[:at])[::1 if (k + i) % 2 else -1]:
                    s.turn()
            k += 1
        found = [[s.per_step() for s in group] for group in groups]
    finally:
        for s in (s for group in groups for s in group):
            s.end()
            shutil.rmtree(s.folder, ignore_errors=True)

    def ratios(x, y):
        each = [[p / q for p, q in zip(u, v)] for u, v in zip(x, y) if u and v]
        if len(each) < 4:
            sys.exit(f"only {len(each)} turns of a pair of runs have more than 6 steps: use a longer --turn, more --seconds or a smaller size")
        return [mean_interval([r[i] for r in each])[0] for i in (0, 1)]

    out = {name: [ratios(g[1 + i], g[0]) for g in found] for i, name in enumerate(names)}
    plain = [g[0] for g in found]
    out["control"] = [ratios(plain[(i + 1) % len(plain)], plain[i]) for i in range(len(plain) - (len(plain) <= 2))]
    return out


def save_parts():
    """Seconds that each of two saves on a GPU costs, and those of a step without one. The time stamps of the steps contain everything."""
    folder, n = os.path.join(work, "run"), a.save_steps
    done = subprocess.run(command(data, folder, None, 3 * n, ["--save_every", str(n), "--save_async"]), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"--save_async: exit code {done.returncode}\n{done.stdout[-2000:]}")
    with open(os.path.join(folder, "metrics.jsonl")) as f:
        at = [json.loads(line)["time_unix_ms"] / 1e3 for line in f]
    saved = [x for x in os.listdir(folder) if x.startswith("step-")]
    if not saved or "left out" in done.stdout:
        sys.exit(f"a checkpoint was not saved: {saved}; use more --save_steps\n{done.stdout[-1000:]}")
    shutil.rmtree(folder)
    skip = 20
    step = (at[n - 1] - at[skip - 1]) / (n - skip)
    return [at[k * n + n - 1] - at[k * n - 1] - n * step for k in (1, 2)], step


def audit_steps(work, workers, micro, rounds):
    """Of every audit: what it adds, in plain steps."""
    L, H, C, T, _ = a.size.split(",")
    folder, groups = os.path.join(work, "run"), []
    for _ in range(rounds):
        shutil.rmtree(folder, ignore_errors=True)
        done = subprocess.run([a.lockstep, "train", "--data", os.path.join(work, "d"), "--model", "gpt2", "--vocab_size", "8192", "--num_layers", L, "--num_heads", H,
                               "--embedding_size", C, "--seq_length", T, "--micro_batch_size_per_gpu", "1", "--global_batch_size", str(workers * micro), "--max_steps", str(50 * a.audits),
                               "--dropout", "0", "--device", "cpu", "--audit", "50", "-n", str(workers), "--strategy", "ddp", "--checkpoint_path", folder],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            sys.exit(f"--audit 50: exit code {done.returncode}\n{done.stdout[-2000:]}")
        with open(os.path.join(folder, "metrics.jsonl")) as f:
            times = [json.loads(line)["step_time_sec"] for line in f]
        with open(os.path.join(folder, "epoch-1", "timings.json")) as f:
            wall = json.load(f)["epochs_done"][0]["wall_time"]
        if not 0.98 < sum(times) / wall <= 1.001:
            sys.exit(f"the steps take {sum(times):.3f} s of {wall:.3f} s: what an audit costs is not all in them")
        groups += [times[k - 4:k] for k in range(50, len(times) + 1, 50)]
    return [(g[2] + g[3] - g[0] - g[1]) / ((g[0] + g[1]) / 2) for g in groups]


def mean_interval(x):
    """Mean without the tenth at either end, and its interval of 95 % (winsorised deviation)."""
    x = sorted(x)
    cut = len(x) // 10
    kept = x[cut:len(x) - cut]
    mean = sum(kept) / len(kept)
    wide = [min(max(v, kept[0]), kept[-1]) for v in x]
    middle = sum(wide) / len(wide)
    half = 1.98 * math.sqrt(sum((v - middle) ** 2 for v in wide) / (len(x) - 1)) / ((1 - 2 * cut / len(x)) * math.sqrt(len(x)))
    return mean, mean - half, mean + half


def interval(ratios):
    """Geometric mean and its interval of 95 %."""
    x = [math.log(r) for r in ratios]
    mean = sum(x) / len(x)
    deviation = math.sqrt(sum((v - mean) ** 2 for v in x) / (len(x) - 1))
    half = compare.t95(len(x) - 1) * deviation / math.sqrt(len(x))
    return [math.exp(v) for v in (mean, mean - half, mean + half)]


def verdict(ratio, bar):
    return "met" if ratio[2] < 1 + bar else "missed" if ratio[1] > 1 + bar else "not decided: more rounds"


work = tempfile.mkdtemp(prefix="idle_cost.", dir=os.path.dirname(os.path.abspath(a.lockstep)))
data, different, stopped = os.path.join(work, "d"), False, []
compare.end_on_sigterm()
try:
    os.makedirs(data)
    r = random.Random(1)
    n = (3 * a.save_steps + 1) * (a.batch or 32) * 1024 if GPU else 1000000  # a save run of one epoch: the checkpoint at its end would wait for the last one
    with open(os.path.join(data, "train.bin"), "wb") as f:
        f.write(bytes(b & m for b, m in zip(r.randbytes(2 * n), itertools.cycle((255, 31)))))  # ids below 8192
    for workers, micro in ((2, 1), (1, 1), (2, 4), (1, 4)) if "audit_step" in a.only else ():
        steps = mean_interval(audit_steps(work, workers, micro, a.rounds))
        m, low, high = (v / 100 for v in steps)
        print(f"audit_step: {workers} worker{'s' if workers > 1 else ''}, {micro} micro-batch{'es' if micro > 1 else ''} each: an audit takes {steps[0]:.3f} steps ({steps[1]:.3f} to {steps[2]:.3f}), "
              f"{100 * m:.3f} % of 100 ({100 * low:.3f} to {100 * high:.3f}), bar 1 %: {verdict((1 + m, 1 + low, 1 + high), 0.01)}", flush=True)
    names = [x for x in IDLE if x in a.only]
    if names:
        cores = sorted(os.sched_getaffinity(0))
        if a.copies > 1 and len(cores) < 2 * a.copies:
            sys.exit(f"--copies {a.copies} needs {2 * a.copies} cores; this process has {len(cores)}")
        on = [["taskset", "-c", f"{cores[2 * k]},{cores[2 * k + 1]}"] if a.copies > 1 else [] for k in range(a.copies)]
        with concurrent.futures.ThreadPoolExecutor(a.copies) as pool:
            try:
                found = list(pool.map(lambda k: idle(os.path.join(work, f"idle-{k}"), names, on[k]), range(a.copies)))
            except BaseException:
                stopped.append(True)  # the threads end their runs
                raise
        for name in [*names, "control"]:
            ratios = [r for f in found for r in f[name]]
            for k, of in enumerate(("mean step", "median step")):
                each = " ".join(f"{100 * r[k] - 100:+.2f}" for r in ratios)
                if len(ratios) < 2:
                    print(f"{name}: {of} {each} %: one pair of runs", flush=True)
                    continue
                m, low, high = interval([r[k] for r in ratios])
                end = f"; bar 0.5 %: {verdict((m, low, high), 0.005)}" if name != "control" else " (plain against plain)"
                print(f"{name}: {of} {100 * m - 100:+.2f} % ({100 * low - 100:+.2f} to {100 * high - 100:+.2f}), {len(ratios)} pairs of runs: {each}{end}", flush=True)
    if GPU and "save" in a.only:
        costs, step = save_parts()
        print(f"save: a step takes {1e3 * step:.2f} ms; two saves delay training by {' and '.join(f'{1e3 * c:.1f}' for c in costs)} ms, "
              f"{' and '.join(f'{100 * c / 20:.2f}' for c in costs)} % of 20 s, bar 1 %: {'met' if max(costs) < 0.2 else 'missed'}", flush=True)
    for name in a.only:
        if name == "audit_step" or name in IDLE or (GPU and name == "save"):
            continue
        options, bar, rounds, steps, size = VARIANTS[name]
        walls, cpus, weights = [], [], set()
        for k in range(rounds):
            got = [run(work, o, steps, size) for o in ([], options, options, [])]
            weights |= {g[2] for g in got}
            walls += [got[1][0] / got[0][0], got[2][0] / got[3][0]]
            cpus += [got[1][1] / got[0][1], got[2][1] / got[3][1]]
            print(f"{name} round {k + 1}: plain {got[0][0]:.2f} and {got[3][0]:.2f} s, with {got[1][0]:.2f} and {got[2][0]:.2f} s; "
                  f"CPU {got[0][1]:.2f} and {got[3][1]:.2f} s, with {got[1][1]:.2f} and {got[2][1]:.2f} s", flush=True)
        different |= len(weights) != 1
        for what, ratios in (("wall", walls), ("CPU", cpus)):
            m, low, high = interval(ratios)
            print(f"{name}: {what} {100 * m - 100:+.2f} % ({100 * low - 100:+.2f} to {100 * high - 100:+.2f}), bar {100 * bar:g} %: {verdict((m, low, high), bar)}", flush=True)
        print(f"{name}: weights {'identical in all runs' if len(weights) == 1 else 'DIFFERENT'}", flush=True)
finally:
    shutil.rmtree(work)
sys.exit(different)
