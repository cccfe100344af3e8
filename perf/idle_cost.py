#!/usr/bin/env python3
"""What an idle supervisor, audits and asynchronous checkpoints cost: runs with and without them, in turns.

    perf/idle_cost.py [LOCKSTEP] [--seconds 150] [--copies N] [--rounds 4] [--steps 101] [--size L,H,C,T,B] [--save_rounds 3] [--save_steps 13] [--save_size L,H,C,T,B]

    supervisor   train --max_restarts 3, no failure              bar: 0.5 % of throughput
    audit_idle   train --audit 100000, no audit in the run       bar: 0.5 %
    audit        train --audit 100, one audit in the run         bar: 1 %
    audit_step   train --audit 50: what an audit adds to the steps without one beside it, as a share of 100 of them; bar: 1 %. Layouts: ddp of 2 and one worker, with one
                 micro-batch per worker and step (an audit repeats all of it: the most that it can cost) and with 4
    save         train --save_async, one checkpoint in the run   bar: 1 %; a model of 33 M parameters, one save in about 20 s

supervisor and audit_idle do the same in every step, so both runs are alive at the same time and take turns of --turn seconds (SIGSTOP and SIGCONT of all their processes, in
the order plain, with, with, plain, ...) for --seconds seconds. Of a turn, the steps count that lie in it as a whole, except the first two. A turn and its neighbour meet the same machine; their
ratios of the mean and of the median step are the samples. A third run, plain like the first, is the control: it takes turns with the plain run in the same way, and shows what the method itself finds where there is nothing.

audit_step needs no second run: of the 4 steps up to an audit, the first two have none, the third ends with the hash of the state, and the fourth repeats the pass and hashes again. The cost is that of
the last two less that of the first two; audits are the samples (--audits of them per round).

For the rest, every round runs a variant and the plain run next to each other in both orders (plain, variant, variant, plain), so that a machine which becomes slower or
faster during a round hits both alike; each half is a ratio. Printed are the geometric mean of the ratios and its interval of 95 % (t distribution), of
the wall time of steps and of all CPU seconds of the run, its start included. The wall time is that of the epoch without its first two steps. All runs of a model must end
with the same weights.

A bar is met if the whole interval is below it, and missed if it is above; else there are too few samples. The defaults should take about 12 minutes on two quiet cores of a server."""
import argparse, concurrent.futures, hashlib, json, math, os, random, resource, shutil, signal, statistics, struct, subprocess, sys, tempfile, time

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("lockstep", nargs="?", default=os.environ.get("LOCKSTEP", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "build", "lockstep")))
p.add_argument("--seconds", type=float, default=150, help="of supervisor and of audit_idle")
p.add_argument("--copies", type=int, default=1, help="of supervisor and audit_idle: so many measurements at the same time, each on two cores of its own")
p.add_argument("--idle_size", default="2,4,128,64,2", help="--size of supervisor and audit_idle: short steps, of which a turn has many")
p.add_argument("--no_control", action="store_true", help="leave out the control of supervisor and audit_idle: twice as many pairs in the same time")
p.add_argument("--turn", type=float, default=0.5, help="seconds of a turn of supervisor and audit_idle")
p.add_argument("--rounds", type=int, default=4, help="of audit and audit_step")
p.add_argument("--steps", type=int, default=101)
p.add_argument("--audits", type=int, default=20, help="of a run of audit_step")
p.add_argument("--size", default="4,4,128,128,2", help="layers, heads, width, sequence length, sequences of a step")
p.add_argument("--save_rounds", type=int, default=3)
p.add_argument("--save_steps", type=int, default=13)
p.add_argument("--save_size", default="9,8,512,128,4")
p.add_argument("--only", nargs="*", choices=["supervisor", "audit", "audit_step", "audit_idle", "save"], default=["supervisor", "audit", "audit_step", "audit_idle", "save"])
a = p.parse_args()
if min(a.rounds, a.save_rounds) < 1:
    p.error("an interval needs at least one round")
if a.steps < 100 and "audit" in a.only:
    p.error("--steps: an audit of every 100 steps needs 100 or more")

# quantiles of Student's t for 95 %, by degrees of freedom
T95 = [0, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131]
IDLE = {"supervisor": ["--max_restarts", "3"], "audit_idle": ["--audit", "100000"]}
VARIANTS = {
    "audit": (["--audit", "100"], 0.01, a.rounds, a.steps, a.size),
    "save": (["--save_every", str(a.save_steps * 2 // 3), "--save_async"], 0.01, a.save_rounds, a.save_steps, a.save_size),
}


def command(data, folder, size, steps, options):
    L, H, C, T, B = size.split(",")
    return [a.lockstep, "train", "--data", data, "--model", "gpt2", "--vocab_size", "8192", "--num_layers", L, "--num_heads", H,
            "--embedding_size", C, "--seq_length", T, "--micro_batch_size_per_gpu", "1", "--global_batch_size", B, "--max_steps", str(steps),
            "--dropout", "0", "-n", "2", "--strategy", "ddp", "--checkpoint_path", folder, *options]


def environment():
    return dict(os.environ, LS_DEVICE="cpu")


def run(work, options, steps, size):
    """Wall seconds of the steps, CPU seconds of all processes, hash of the weights."""
    folder = os.path.join(work, "run")
    shutil.rmtree(folder, ignore_errors=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command(data, folder, size, steps, options), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment())
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
                                        stderr=self.log, env=environment())

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
        limit = time.time() + 60
        while self.process.poll() is None and len(self.lines()) < 20:
            if time.time() > limit:
                sys.exit(f"{self.name}: no 20 steps in 60 s")
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


def idle(work, options, cores):
    """Ratios of neighbouring turns: with the option over plain, and the control over plain."""
    os.makedirs(work, exist_ok=True)
    sides = [Alive(work, x, o, cores) for x, o in [("plain", []), ("with", options)] + [("control", [])] * (not a.no_control)]
    try:
        for s in sides:
            s.begin()
        plain, end, k = sides[0], time.time() + a.seconds, 0
        pairs = {s.name: [] for s in sides[1:]}
        while time.time() < end:
            for other in sides[1:]:
                for s in (plain, other) if k % 2 else (other, plain):
                    s.turn()
                pairs[other.name].append((len(other.turns) - 1, len(plain.turns) - 1))
            k += 1
        found = {s.name: s.per_step() for s in sides}
    finally:
        for s in sides:
            s.end()
            shutil.rmtree(s.folder, ignore_errors=True)
    return {x: [[p / q for p, q in zip(found[x][i], found["plain"][j])] for i, j in at if found[x][i] and found["plain"][j]] for x, at in pairs.items()}


def audit_steps(work, workers, micro, rounds):
    """Of every audit: what it adds, in plain steps."""
    L, H, C, T, _ = a.size.split(",")
    folder, groups = os.path.join(work, "run"), []
    for _ in range(rounds):
        shutil.rmtree(folder, ignore_errors=True)
        done = subprocess.run([a.lockstep, "train", "--data", os.path.join(work, "d"), "--model", "gpt2", "--vocab_size", "8192", "--num_layers", L, "--num_heads", H,
                               "--embedding_size", C, "--seq_length", T, "--micro_batch_size_per_gpu", "1", "--global_batch_size", str(workers * micro), "--max_steps", str(50 * a.audits),
                               "--dropout", "0", "--audit", "50", "-n", str(workers), "--strategy", "ddp", "--checkpoint_path", folder],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=dict(os.environ, LS_DEVICE="cpu"))
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
    half = (T95[len(x) - 1] if len(x) <= len(T95) else 1.96) * deviation / math.sqrt(len(x))
    return [math.exp(v) for v in (mean, mean - half, mean + half)]


def verdict(ratio, bar):
    return "met" if ratio[2] < 1 + bar else "missed" if ratio[1] > 1 + bar else "not decided: more rounds"


work = tempfile.mkdtemp(prefix="idle_cost.", dir=os.path.dirname(os.path.abspath(a.lockstep)))
data, different = os.path.join(work, "d"), False
try:
    os.makedirs(data)
    r = random.Random(1)
    with open(os.path.join(data, "train.bin"), "wb") as f:
        f.write(struct.pack("<1000000H", *(r.randrange(8000) for _ in range(1000000))))
    for workers, micro in ((2, 1), (1, 1), (2, 4), (1, 4)) if "audit_step" in a.only else ():
        steps = mean_interval(audit_steps(work, workers, micro, a.rounds))
        m, low, high = (v / 100 for v in steps)
        print(f"audit_step: {workers} worker{'s' if workers > 1 else ''}, {micro} micro-batch{'es' if micro > 1 else ''} each: an audit takes {steps[0]:.3f} steps ({steps[1]:.3f} to {steps[2]:.3f}), "
              f"{100 * m:.3f} % of 100 ({100 * low:.3f} to {100 * high:.3f}), bar 1 %: {verdict((1 + m, 1 + low, 1 + high), 0.01)}", flush=True)
    for name in [x for x in IDLE if x in a.only]:
        cores = sorted(os.sched_getaffinity(0))
        if a.copies > 1 and len(cores) < 2 * a.copies:
            sys.exit(f"--copies {a.copies} needs {2 * a.copies} cores; this process has {len(cores)}")
        on = [["taskset", "-c", f"{cores[2 * k]},{cores[2 * k + 1]}"] if a.copies > 1 else [] for k in range(a.copies)]
        with concurrent.futures.ThreadPoolExecutor(a.copies) as pool:
            found = list(pool.map(lambda k: idle(os.path.join(work, f"{name}-{k}"), IDLE[name], on[k]), range(a.copies)))
        ratios = {x: [r for f in found for r in f[x]] for x in found[0]}
        for which, words in (("with", name), ("control", f"{name}, control (plain against plain)"))[:len(ratios)]:
            if len(ratios[which]) < 10:
                sys.exit(f"{name}: only {len(ratios[which])} turns have more than 6 steps; use a longer --turn or a smaller --size")
            for k, of in enumerate(("mean step", "median step")):
                m, low, high = mean_interval([r[k] for r in ratios[which]])
                end = f", bar 0.5 %: {verdict((m, low, high), 0.005)}" if which == "with" else ""
                print(f"{words}: {of} {100 * m - 100:+.2f} % ({100 * low - 100:+.2f} to {100 * high - 100:+.2f}), {len(ratios[which])} pairs of turns of {a.turn:g} s{end}",
                      flush=True)
    for name in a.only:
        if name == "audit_step" or name in IDLE:
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
