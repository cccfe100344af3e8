#!/usr/bin/env python3
"""Tests every layout over NCCL with several ranks on one GPU: bits, launchers, transports, faults, start-up and shutdown.

    perf/gpu_nccl.py [tiny|full|steps|faults|ends|rows]... --work DIR      (perf/gpu_session.sh nccl calls it)

Cases run several at a time. Each has a time limit; at the limit all its processes are killed; with cuda-gdb or gdb in PATH their
stack traces are kept. A case prints one line `== NAME: ok ...`, `== NAME: FAILED ...` or `== NAME: left out, ...`. Exit code 1: a case failed.
Environment: LOCKSTEP (the program), COMM [nccl], JOBS [4], RANKS [4], FULL_JOBS [1], LIMIT, BUDGET, DEVICE=emu; NCCL's variables pass through.
If CUDA_MPS_PIPE_DIRECTORY is set, all parts except `faults` use MPS; without it processes share the GPU by time slices, and a case of two
ranks takes 15 s instead of 4 s. Faults run four at a time without MPS, because killing a client of MPS affects its other clients.
"""
# ls-bench: by name
import argparse
import collections
import concurrent.futures
import ctypes
import filecmp
import glob
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

BOUND = 5e-3  # relative, of every loss: the limit of `lockstep verify` for 16-bit operations (LS_VERIFY_LOSS_16)
NORM_BOUND = 5e-2  # and of every norm of gradients (LS_VERIFY_GRAD_16)
SCHEDULES = ["naive", "gpipe", "1f1b", "interleaved", "zb"]
# Ranks of one GPU use its memory whatever NCCL_P2P_DISABLE is, unless NCCL takes them for ranks of different hosts: Run gives each rank
# its own value.
SOCKETS = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_HOSTID": "one per rank"}
FAULT_LIMIT = 30  # seconds until everyone has ended

LOCKSTEP = os.environ.get("LOCKSTEP", "build/lockstep")
COMM = os.environ.get("COMM") or "nccl"
EMU = os.environ.get("DEVICE") == "emu"
MORE = os.environ.get("TRAIN_ARGS", "").split()

TINY = "--model tiny --vocab_size 300 --seq_length 64 --micro_batch_size_per_gpu 2 --global_batch_size 16 --precision bf16"
# A learning rate without a loss spike: at the default rate the loss of 124M jumps within the first steps, and there two runs of ONE worker with
# --no_deterministic differ by 2.5 % in the norm of the gradients. Bits are compared at any rate; bounds are meaningful only where runs stay close.
FULL = "--model gpt2 --seq_length 512 --micro_batch_size_per_gpu 4 --global_batch_size 16 --precision bf16 --lr 1e-4"
TINY_STEPS, FULL_STEPS, LONG_STEPS, ENDS = 8, 4, 200, 20
FAULT, FAULT_STEPS, FAULT_SAVE = TINY, 120, 20
if EMU:  # the same script with little of everything
    TINY = "--model tiny --vocab_size 300 --seq_length 8 --micro_batch_size_per_gpu 1 --global_batch_size 8 --precision bf16"
    FULL = TINY + " --bucket 5000"
    TINY_STEPS, FULL_STEPS, LONG_STEPS, ENDS = 2, 2, 3, 2
    FAULT, FAULT_STEPS, FAULT_SAVE = TINY.replace("global_batch_size 8", "global_batch_size 4 --num_layers 2"), 10, 2


class Failed(Exception):
    pass


class LeftOut(Exception):
    pass


class OutOfTime(LeftOut):
    """Of the whole call; the exit code is then 1."""


def need(ok, words):
    if not ok:
        raise Failed(words)


# ---- processes ------------------------------------------------------------------------------------------------------

MARK = "LOCKSTEP_SESSION_CASE"


def marked(mark):
    """Processes of a case: those that have its variable; of all cases: those whose variable begins so. A zombie is gone."""
    found, want = [], f"{MARK}={mark}".encode()
    for d in os.listdir("/proc"):
        if not d.isdigit() or int(d) == os.getpid():
            continue
        try:
            with open(f"/proc/{d}/environ", "rb") as f:
                if not any(x == want or (mark.endswith("-") and x.startswith(want)) for x in f.read().split(b"\0")):
                    continue
            with open(f"/proc/{d}/stat") as f:
                if f.read().rsplit(")", 1)[1].split()[0] != "Z":
                    found.append(int(d))
        except OSError:
            pass
    return found


def kill_marked(mark):
    for _ in range(100):
        pids = marked(mark)
        if not pids:
            return
        for p in pids:
            try:
                os.kill(p, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.1)


def keep_stacks(mark, path):
    gdb = shutil.which("cuda-gdb") or shutil.which("gdb")
    if not gdb:
        return
    with open(path, "w") as out:
        for p in marked(mark)[:8]:
            out.write(f"---- {p}: {open(f'/proc/{p}/cmdline').read().replace(chr(0), ' ')[:300] if os.path.exists(f'/proc/{p}') else ''}\n")
            out.flush()
            try:
                subprocess.run([gdb, "-p", str(p), "-batch", "-ex", "thread apply all bt 14"], stdout=out, stderr=subprocess.STDOUT,
                               stdin=subprocess.DEVNULL, timeout=30)
            except (subprocess.TimeoutExpired, OSError) as why:
                out.write(f"{why}\n")


class Run:
    """One start of the program: its processes, output, and end."""

    def __init__(self, name, words, env=None, launcher="-n", n=1):
        self.name, self.mark = name, f"{os.getpid()}-{name}-{time.monotonic_ns()}"
        self.log = os.path.join(work, "logs", name.replace("/", "_") + ".out")
        self.procs, self.begin = [], time.monotonic()
        base = dict(os.environ, **{MARK: self.mark}, **(env or {}))
        if not use_mps:
            base.pop("CUDA_MPS_PIPE_DIRECTORY", None)
        self.file = open(self.log, "a")
        self.file.write(f"-- {launcher} {n} {' '.join(words)} {env or ''}\n")
        self.file.flush()
        self.at = os.path.getsize(self.log)
        if launcher == "mpirun":
            base.update(OMPI_MCA_mpi_yield_when_idle="1", OMPI_MCA_hwloc_base_binding_policy="none")
            self.start(["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(n), LOCKSTEP, *words], base)
        elif launcher == "variables":
            port = free_port()
            for r in range(n):
                if "NCCL_HOSTID" in base:
                    base["NCCL_HOSTID"] = f"host{r}"
                self.start([LOCKSTEP, *words], dict(base, RANK=str(r), WORLD_SIZE=str(n), LOCAL_RANK=str(r), LOCAL_WORLD_SIZE=str(n),
                                                    MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)))
        else:
            self.start([LOCKSTEP, *words, *(["-n", str(n)] if n > 1 else [])], base)

    def start(self, argv, env):
        self.procs.append(subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=self.file, stderr=subprocess.STDOUT,
                                           start_new_session=True))

    def text(self):
        with open(self.log, errors="replace") as f:
            f.seek(self.at)
            return f.read()

    def running(self):
        return any(p.poll() is None for p in self.procs)

    def wait(self, limit):
        """Exit codes; Failed at the limit, or where a process is left; OutOfTime where the time of the whole call ends first. Everything of it is gone afterwards."""
        until = time.monotonic() + limit
        try:
            while self.running():
                now = time.monotonic()
                if now > until or now > deadline:
                    keep_stacks(self.mark, self.log + ".stacks")
                    if now <= until:
                        raise OutOfTime(f"time limit of the call reached, stopped after {now - self.begin:.0f} s")
                    raise Failed(f"has not ended after {now - self.begin:.0f} s: {last_line(self.text())}")
                time.sleep(0.02)
            for _ in range(60):  # a launcher's children may end a moment after it
                left = marked(self.mark)
                if not left:
                    return [p.returncode for p in self.procs]
                time.sleep(0.05)
            keep_stacks(self.mark, self.log + ".stacks")
            raise Failed(f"ended, but {len(left)} processes are left running: {left}")
        finally:
            self.stop()

    def stop(self):
        kill_marked(self.mark)
        for p in self.procs:
            p.wait()
        self.file.close()

    def pid_of(self, rank):
        m = re.search(rf"Startup: pid=(\d+) rank={rank} ", self.text())
        return int(m.group(1)) if m else None


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def last_line(text):
    lines = [x for x in text.splitlines() if x.strip() and not re.match(r"\s+(at|via) ", x)]
    ours = [x for x in lines if x.startswith("lockstep: ")]
    return (ours or lines)[-1][:200] if lines else "no output"


# ---- training -------------------------------------------------------------------------------------------------------


def words_of(job, steps, folder, extra=()):
    data = os.path.join(work, "ids-tiny.bin" if "--model tiny" in job else "ids-full.bin")
    return ["train", "--device", "cuda", "--train_data_path", data, "--checkpoint_path", folder, "--dropout", "0", "--reference_output", *job.split(),
            "--max_steps", str(steps), *MORE, *extra]


def newest(folder):
    found = sorted(glob.glob(os.path.join(folder, "epoch-*", "model.safetensors")))
    need(found, "no checkpoint of an epoch")
    return found[-1]


def losses(folder, key="loss"):
    rows = {}
    with open(os.path.join(folder, "metrics.jsonl")) as f:
        for line in f:
            r = json.loads(line)
            rows[r["step"]] = r[key]
    return rows


references, reference_lock = {}, threading.Lock()


def reference(job, steps, extra=()):
    """Folder of one worker's run, made once."""
    key = (job, steps, tuple(extra))
    with reference_lock:
        entry = references.setdefault(key, {"lock": threading.Lock(), "folder": None, "why": None})
    with entry["lock"]:
        if entry["folder"] is None and entry["why"] is None:
            k = sorted(references, key=str).index(key)
            name = f"one-{'tiny' if '--model tiny' in job else 'full'}-{steps}-{k}-{time.monotonic_ns() % 10**6}"
            folder = os.path.join(work, name)
            try:
                r = Run(name, words_of(job, steps, folder, extra))
                code = r.wait(300)[0]
                need(code == 0, f"exit code {code}: {last_line(r.text())}")
                need(len(losses(folder)) == steps, f"{len(losses(folder))} steps, not {steps}")
                for f in glob.glob(os.path.join(folder, "*", "optimizer.safetensors")):
                    os.remove(f)
                entry["folder"] = folder
            except (Failed, OSError) as why:
                entry["why"] = str(why)
    need(entry["folder"], f"one worker: {entry['why']}")
    return entry["folder"]


def metrics(folder):
    with open(os.path.join(folder, "training_metrics.json")) as f:
        return json.load(f)["lockstep"]


def check_backend(folder, want):
    said = metrics(folder)
    got = {str(said[k].get("backend")) for k in ("comm", "tensor_comm", "activations_comm", "gradients_comm") if said.get(k)}
    need(got and all(x.split(",")[0] == want for x in got), f"the run talked over {', '.join(sorted(got)) or 'nothing'}, not {want}")


def check_sockets(folder):
    if EMU:
        return
    with open(os.path.join(folder, "nccl", "summary.json")) as f:
        used = json.load(f)["transports"]
    need(used and all(t.startswith("NET/Socket") for t in used), f"NCCL used {', '.join(used) or 'nothing'}, not its sockets")


def same_bits(folder, ref, steps):
    a, b = losses(folder), losses(ref)
    wrong = [k for k in range(1, steps + 1) if a.get(k) is None or a.get(k) != b.get(k)]
    need(not wrong, f"{len(wrong)} of {steps} losses differ from one worker's, first at step {wrong[0] if wrong else 0}: "
         f"{a.get(wrong[0]) if wrong else ''} and {b.get(wrong[0]) if wrong else ''}")
    need(filecmp.cmp(newest(folder), newest(ref), shallow=False), "losses are the same, weights differ from one worker's")
    return "the bits of one worker"


def near(folder, ref, steps):
    said = []
    for key, words, bound in (("loss", "losses", BOUND), ("grad_norm", "norms", NORM_BOUND)):
        a, b, worst = losses(folder, key), losses(ref, key), 0.0
        for k in range(1, steps + 1):
            need(a.get(k) is not None and math.isfinite(a[k]), f"no finite {key} at step {k}")
            worst = max(worst, abs(a[k] - b[k]) / abs(b[k]))
        need(worst <= bound, f"{words} differ by {worst:.1e}, more than {bound:g}")
        said.append(f"{words} within {worst:.1e}")
    return ", ".join(said)


def layout(job, steps, extra, n, launcher="-n", env=None, comm=None, exact=True, limit=75, memory=False):
    """Trains a layout and compares it with one worker. exact: bits, else losses within the bound."""

    def body(name):
        comm_now = comm or COMM
        if launcher == "mpirun" and (not shutil.which("mpirun") or not os.path.exists(os.path.join(os.path.dirname(LOCKSTEP), "lockstep_mpi.so"))):
            raise LeftOut("mpirun or lockstep_mpi.so is missing")
        ref = reference(job, steps)
        folder = os.path.join(work, name)
        words = list(extra)
        if n > 1 and not (launcher == "mpirun" and comm_now == "local"):
            words += ["--comm", comm_now]
        try:
            r = Run(name, words_of(job, steps, folder, words), env, launcher, n)
            codes = r.wait(min(limit * (3 if EMU else 1), case_limit))
            need(not any(codes), f"exit codes {codes}: {last_line(r.text())}")
            need(os.path.exists(os.path.join(folder, "RUN_COMPLETE.txt")), "no RUN_COMPLETE.txt")
            if n > 1:
                check_backend(folder, COMM if comm_now == "auto" else "mpi" if launcher == "mpirun" and comm_now == "local" else comm_now)
            if env == SOCKETS:
                check_sockets(folder)
            said = same_bits(folder, ref, steps) if exact else near(folder, ref, steps)
            return said + (", " + check_memory(folder) if memory else "")
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    body.ranks = n
    return body


def check_memory(folder):
    rows = metrics(folder)["memory"]["per_rank"]
    for r in rows:
        need(r["planned"] + r.get("comm", 0) == r["device"], f"rank {r['rank']}: planned {r['planned']} and {r.get('comm', 0)} for sums, allocated {r['device']} bytes")
    return f"{max(r['planned'] for r in rows) / 2**20:,.0f} MiB planned and allocated on {len(rows)} ranks"


# ---- the cases ------------------------------------------------------------------------------------------------------


class Case:
    def __init__(self, part, name, body, rows=(), heavy=False, count=1):
        self.part, self.name, self.body, self.rows, self.heavy, self.count = part, name, body, rows, heavy, count


def shapes(n):
    """Layouts of n ranks: name, options, whether one worker's bits are promised."""
    out = [(s, ["--strategy", s], True) for s in ("dp", "ddp", "zero1", "zero2", "zero3")]
    pipe = lambda s: ["--pp", "2", "--schedule", s, *(["--interleave", "2"] if s == "interleaved" else [])]
    if n == 2:
        out += [(f"pp2-{s}", pipe(s), True) for s in SCHEDULES]
        out += [("tp2", ["--tp", "2"], False), ("tp2-rows", ["--tp", "2", "--sequence_parallel"], False)]
    else:
        out += [(f"pp2-{s}-zero1", [*pipe(s), "--strategy", "zero1"], True) for s in ("1f1b", "gpipe", "zb")]
        out += [("pp2-tp2", [*pipe("1f1b"), "--tp", "2"], False), ("tp2-rows-zero3", ["--tp", "2", "--sequence_parallel", "--strategy", "zero3"], False)]
    return out


def row_of(size, n, shape, free):
    if free:
        return ()
    if size == "full":
        return tuple(r for r, s in ((2, ("ddp", "zero2", "zero3")), (6, ("zero1", "zero2"))) if n == 2 and shape in s) + \
            ((8,) if shape.startswith("pp2") and n == 2 else ())
    return {"pp2-gpipe": (4,), "pp2-1f1b": (5,), "pp2-zb": (5,), "pp2-1f1b-zero1": (5,), "pp2-naive": (8,)}.get(shape, ())


def tiny_cases():
    out = []
    for n in (2, 4):
        for shape, words, exact in shapes(n):
            for free in (False, True):
                out.append(Case("tiny", f"tiny-{n}-{shape}{'-free' if free else ''}",
                                layout(TINY, TINY_STEPS, words + (["--no_deterministic"] if free else []), n, exact=exact and not free),
                                row_of("tiny", n, shape, free)))
    some = [("ddp", 2, ["--strategy", "ddp"], True), ("zero3", 4, ["--strategy", "zero3"], True),
            ("pp2-1f1b", 2, ["--pp", "2"], True), ("pp2-gpipe-zero1", 4, ["--pp", "2", "--schedule", "gpipe", "--strategy", "zero1"], True),
            ("tp2", 2, ["--tp", "2"], False)]
    for shape, n, words, exact in some:
        for how, name in (("mpirun", "mpirun"), ("variables", "torchrun")):
            out.append(Case("tiny", f"{name}-{n}-{shape}", layout(TINY, TINY_STEPS, words, n, launcher=how, exact=exact)))
        if COMM == "nccl":
            out.append(Case("tiny", f"sockets-{n}-{shape}", layout(TINY, TINY_STEPS, words, n, launcher="variables", env=SOCKETS, exact=exact)))
    if COMM == "nccl":
        out.append(Case("tiny", "auto-2-ddp", layout(TINY, TINY_STEPS, ["--strategy", "ddp"], 2, comm="auto")))
    for count in (4,) if EMU else (2, 4, 8, 16):  # one worker, several micro-batches: recorded graphs, and buckets that wait for the last micro-batch
        job = re.sub(r"--micro_batch_size_per_gpu \d+ --global_batch_size \d+", f"--micro_batch_size_per_gpu 1 --global_batch_size {count}", TINY)
        for s in ("ddp", "zero1", "zero2"):
            for precision in ("bf16", "fp32"):
                out.append(Case("tiny", f"one-{s}-{count}-{precision}",
                                layout(job.replace("bf16", precision), max(4, TINY_STEPS), ["--strategy", s], 1), (3,)))
    return out


def full_cases():
    out = [Case("full", "full-2-zero3-staged", layout(FULL, FULL_STEPS, ["--strategy", "zero3"], 2, comm="local", limit=200), (1,), True)]
    for n in (2, 4):
        for shape, words, exact in shapes(n):
            out.append(Case("full", f"full-{n}-{shape}", layout(FULL, FULL_STEPS, words, n, exact=exact, limit=200, memory=True),
                            row_of("full", n, shape, False), True))
            if n == 2 and shape in ("ddp", "zero1", "zero3", "pp2-1f1b", "tp2"):
                out.append(Case("full", f"full-{n}-{shape}-free",
                                layout(FULL, FULL_STEPS, words + ["--no_deterministic"], n, exact=False, limit=200), (), True))
    if COMM == "nccl":
        out.append(Case("full", "full-sockets-2-zero1", layout(FULL, FULL_STEPS, ["--strategy", "zero1"], 2, launcher="variables", env=SOCKETS, limit=200), (), True))
    return out


def steps_cases():
    return [Case("steps", f"steps-2-{s}", layout(FULL, LONG_STEPS, ["--strategy", s], 2, limit=420, memory=True), (), True)
            for s in ("ddp", "zero1", "zero2", "zero3")]


def ends_cases():
    out = []
    for s in SCHEDULES:
        words = ["--pp", "2", "--schedule", s, *(["--interleave", "2"] if s == "interleaved" else [])]
        for _ in range(ENDS):
            out.append(Case("ends", f"ends-pp2-{s}", layout(TINY, 2, words, 2, limit=60), (5,) if s in ("1f1b", "zb") else (8,) if s == "naive" else
                            (4,) if s == "gpipe" else (), count=ENDS))
    return out


# ---- faults ---------------------------------------------------------------------------------------------------------


def pidfd_sockets(pid):
    """TCP sockets of another process, as sockets of ours."""
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = libc.syscall(434, pid, 0)  # pidfd_open
    if pidfd < 0:
        raise LeftOut(f"pidfd_open: {os.strerror(ctypes.get_errno())}")
    out = []
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                if not os.readlink(f"/proc/{pid}/fd/{fd}").startswith("socket:"):
                    continue
            except OSError:
                continue
            got = libc.syscall(438, pidfd, int(fd), 0)  # pidfd_getfd
            if got < 0:
                raise LeftOut(f"pidfd_getfd: {os.strerror(ctypes.get_errno())}")
            s = socket.socket(fileno=got)
            try:
                s.getpeername()
                connected = s.family in (socket.AF_INET, socket.AF_INET6) and s.type & 0xf == socket.SOCK_STREAM
            except OSError:
                connected = False
            out.append(s) if connected else s.close()
    finally:
        os.close(pidfd)
    return out


def cut_sockets(pid):
    found = pidfd_sockets(pid)
    need(found, f"process {pid} has no TCP connection: NCCL does not use sockets")
    for s in found:
        try:
            s.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        s.close()


def cut_rank_1(r):
    if EMU:
        raise LeftOut("the fake NCCL has no sockets")
    pid = r.pid_of(1)
    need(pid, "rank 1 did not print its pid")
    cut_sockets(pid)


def fault(words, what, launcher="-n", env=None, timeout=None, named=r"[Rr]ank 1", exit_codes=None):
    """Trains until a checkpoint exists, does `what` to the run, waits for its end, resumes it, and compares the bits with an undisturbed run."""

    def body(name):
        ref = reference(FAULT, FAULT_STEPS, ["--save_every", str(FAULT_SAVE)])
        folder = os.path.join(work, name)
        more = [*words, "--comm", COMM, "--save_every", str(FAULT_SAVE)]
        r = Run(name, words_of(FAULT, FAULT_STEPS, folder, more + (["--comm_timeout", str(timeout)] if timeout else [])), env, launcher, 2)
        ended = False
        try:
            first = os.path.join(folder, f"step-{FAULT_SAVE}")
            until = time.monotonic() + 120
            while not os.path.isdir(first):
                need(r.running() and time.monotonic() < until, f"no checkpoint {first}: {last_line(r.text())}")
                time.sleep(0.005)
            at = time.monotonic()
            what(r)
            ended = True  # by wait, whatever comes
            codes = r.wait(FAULT_LIMIT)
            took = time.monotonic() - at
        finally:
            if not ended:
                r.stop()
        text = r.text()
        need(any(codes), "the run ended well: it was not disturbed")
        need(exit_codes is None or codes[0] in exit_codes, f"exit codes {codes}, not {exit_codes}: {last_line(text)}")
        need(named is None or re.search(named, re.sub(r"Startup:.*|.*\[Rank \d\].*", "", text)), f"no rank is named: {last_line(text)}")
        again = Run(name + "-resumed", words_of(FAULT, FAULT_STEPS, folder, [*more, "--resume"]), env, launcher, 2)
        codes2 = again.wait(120)
        need(not any(codes2), f"--resume: exit codes {codes2}: {last_line(again.text())}")
        need(filecmp.cmp(newest(folder), newest(ref), shallow=False), "the resumed run has other weights than an undisturbed one")
        shutil.rmtree(folder, ignore_errors=True)
        return f"exit codes {codes} after {took:.1f} s, resumed with the same bits"

    body.ranks = 2
    return body


def to_rank(rank, sig):
    def what(r):
        pid = r.pid_of(rank)
        need(pid, f"rank {rank} did not print its pid")
        os.kill(pid, sig)

    return what


def stop_then_term(r):
    to_rank(1, signal.SIGSTOP)(r)
    time.sleep(1)
    for _ in range(2):
        r.procs[0].send_signal(signal.SIGTERM)
        time.sleep(2)


def faults_cases():
    pp = lambda s: ["--pp", "2", "--schedule", s]
    kinds = [("ddp", ["--strategy", "ddp"]), ("zero3", ["--strategy", "zero3"]), ("pp2-1f1b", pp("1f1b"))]
    out = [Case("faults", f"kill9-{n}", fault(w, to_rank(1, signal.SIGKILL), named=r"rank 1 .*signal 9", exit_codes=[4])) for n, w in kinds]
    kinds = [("ddp", ["--strategy", "ddp"]), ("zero1", ["--strategy", "zero1"]), ("pp2-gpipe", pp("gpipe"))]
    out += [Case("faults", f"stopped-{n}", fault(w, to_rank(1, signal.SIGSTOP), timeout=10, exit_codes=[4]), (7,)) for n, w in kinds]
    # nobody reaps a rank that a loop has started: its peers find out by themselves
    out += [Case("faults", f"gone-{n}", fault(w, to_rank(1, signal.SIGKILL), launcher="variables", exit_codes=[4]))
            for n, w in (("ddp", ["--strategy", "ddp"]), ("pp2-zb", pp("zb")))]
    out += [Case("faults", "term-ddp", fault(["--strategy", "ddp"], lambda r: r.procs[0].send_signal(signal.SIGTERM), named=None, exit_codes=[143])),
            Case("faults", "term-pp2", fault(pp("1f1b"), lambda r: r.procs[0].send_signal(signal.SIGTERM), named=None, exit_codes=[143])),
            Case("faults", "term-twice-stopped", fault(["--strategy", "ddp"], stop_then_term, named=None))]
    if COMM == "nccl":
        out += [Case("faults", f"gone-sockets-{n}", fault(w, to_rank(1, signal.SIGKILL), launcher="variables", env=SOCKETS, exit_codes=[4]))
                for n, w in (("zero2", ["--strategy", "zero2"]),)]
        # the connections of NCCL end in the middle of a step, every process lives: an error of NCCL and of nothing else
        out += [Case("faults", f"cut-{n}", fault(w, cut_rank_1, launcher="variables", env=SOCKETS, named=r"[Rr]ank [01]", timeout=20, exit_codes=[4]))
                for n, w in (("ddp", ["--strategy", "ddp"]), ("pp2-1f1b", pp("1f1b")))]
    return out


# ---- the session ----------------------------------------------------------------------------------------------------

print_lock = threading.Lock()
results, groups, out_of_time = [], {}, []  # out_of_time: cases that had no time


def say(line):
    with print_lock:
        print(f"== {line}", flush=True)


def finish(case, verdict, words, seconds):
    """Prints one line per name; a name with a count is printed when its last case has ended."""
    with print_lock:
        g = groups.setdefault(case.name, {"case": case, "n": 0, "bad": [], "out": [], "seconds": 0.0, "words": ""})
        g["n"] += 1
        g["seconds"] = max(g["seconds"], seconds)
        if verdict == "ok":
            g["words"] = words
        else:
            g["bad" if verdict == "FAILED" else "out"].append(words)
        if g["n"] < case.count:
            return
        verdict = "FAILED" if g["bad"] else "left out" if g["out"] else "ok"
        results.append((case, verdict))
        words = (g["bad"] or g["out"] or [g["words"]])[0]
        many = f"{case.count - len(g['bad'])} of {case.count} times, " if case.count > 1 else ""
        print(f"== {case.name}: {verdict}, {many}{g['seconds']:.1f} s{', the longest' if case.count > 1 else ''}: {words}", flush=True)


# A GPU has channels for a few dozen processes: further ones fail to open the device. These are retried.
FULL_GPU = re.compile(r"cudaSetDevice: (CUDA-capable device\(s\) is/are busy|out of device memory)")


def no_room(name):
    try:
        with open(os.path.join(work, "logs", f"{name}.out"), errors="replace") as f:
            return bool(FULL_GPU.search(f.read().rsplit("\n-- ", 1)[-1]))
    except OSError:
        return False


def attempt(case, name):
    for left in (3, 2, 1, 0):
        try:
            return case.body(name)
        except Failed:
            if not left or not no_room(name) or deadline - time.monotonic() < 20:
                raise
            time.sleep(4 - left)


def run_case(case, number):
    begin = time.monotonic()
    try:
        if deadline - begin < 5:
            raise OutOfTime("time limit reached")
        verdict, words = "ok", attempt(case, case.name if case.count == 1 else f"{case.name}-{number}")
    except LeftOut as why:
        if isinstance(why, OutOfTime):
            out_of_time.append(case.name)
        verdict, words = "left out", str(why)
    except Failed as why:
        verdict, words = "FAILED", str(why)
    except Exception as why:  # a case that breaks is a failed one, not the end of the others
        verdict, words = "FAILED", f"{type(why).__name__}: {why}"
    finish(case, verdict, words, time.monotonic() - begin)


def shm():
    """Shared memory that lockstep or NCCL did not remove (lockstep-test-*: folders of tests that run beside this)."""
    try:
        return {x for x in os.listdir("/dev/shm") if x.startswith(("nccl", "lockstep", "ls-")) and not x.startswith("lockstep-test-")}
    except OSError:
        return set()


def ids(path, n, vocabulary):
    import random
    import struct
    r = random.Random(1)
    text = [[r.randrange(vocabulary) for _ in range(r.randrange(2, 7))] for _ in range(200)]
    out = []
    while len(out) < n:
        out += r.choice(text)
    with open(path, "wb") as f:
        f.write(struct.pack(f"<{n}H", *out[:n]))


def summary(before_shm):
    left = []
    for _ in range(40):
        left = [f"process {p}" for p in marked(f"{os.getpid()}-")] + [f"/dev/shm/{x}" for x in shm() - before_shm]
        if not left:
            break
        time.sleep(0.1)
    say(f"nothing left running or in shared memory: {'ok' if not left else 'FAILED, ' + ', '.join(left[:8])}")
    for row in range(1, 9):
        of = [(c, v) for c, v in results if row in c.rows]
        if not of:
            continue
        bad = [c.name for c, v in of if v != "ok"]
        say(f"row{row}: {'ok' if not bad else 'FAILED'}, {len(of) - len(bad)} of {len(of)} cases{': ' + ', '.join(bad[:6]) if bad else ''}")
    n = {v: sum(1 for _, x in results if x == v) for v in ("ok", "FAILED", "left out")}
    say(f"{n['ok']} ok, {n['FAILED']} FAILED, {n['left out']} left out, of {len(results)} cases over {COMM}; {time.monotonic() - start:.0f} s")
    return 1 if n["FAILED"] or out_of_time or left or not results else 0


class Room:
    """Limits the ranks that share the GPU at the same time. A case with more ranks than the limit runs alone."""

    def __init__(self, ranks):
        self.ranks, self.used, self.changed = ranks, 0, threading.Condition()

    def run(self, case, number):
        need_ranks = min(case.body.ranks, self.ranks)
        with self.changed:
            self.changed.wait_for(lambda: self.used + need_ranks <= self.ranks)
            self.used += need_ranks
        try:
            run_case(case, number)
        finally:
            with self.changed:
                self.used -= need_ranks
                self.changed.notify_all()


def run_pools(cases, jobs, full_jobs, ranks):
    """`jobs` cases at the same time with at most `ranks` ranks, at most `full_jobs` of the cases with GPT-2 124M."""
    room = Room(ranks)
    heavy, light = (collections.deque((k, c) for k, c in enumerate(cases) if c.heavy == want) for want in (True, False))

    def worker(k):
        mine = [heavy, light] if k < full_jobs else [light]
        while True:
            try:
                number, case = next(q for q in mine if q).popleft()
            except (StopIteration, IndexError):  # IndexError: another thread took the last one
                if not any(mine):
                    return
                continue
            room.run(case, number)

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for f in [pool.submit(worker, k) for k in range(jobs)]:
            f.result()


def on_term(sig, frame):
    """Nothing outlives this program."""
    kill_marked(f"{os.getpid()}-")
    os._exit(143)


def main():
    global work, deadline, case_limit, use_mps
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    a.add_argument("parts", nargs="*", help="tiny, full, steps, faults, ends, rows (only the cases of the table) [all]")
    a.add_argument("--work", required=True, help="folder for runs and output of cases")
    a.add_argument("--jobs", type=int, default=int(os.environ.get("JOBS") or 4))
    a.add_argument("--ranks", type=int, default=int(os.environ.get("RANKS") or 4), help="maximum number of ranks on the GPU at the same time")
    a.add_argument("--full-jobs", type=int, default=int(os.environ.get("FULL_JOBS") or 1), help="maximum number of GPT-2 124M cases at the same time")
    a.add_argument("--budget", type=float, default=float(os.environ.get("BUDGET") or 540))
    a.add_argument("--limit", type=float, default=float(os.environ.get("LIMIT") or 1e9), help="maximum seconds per case")
    a.add_argument("--only", help="run only cases whose names match this regular expression")
    a.add_argument("--list", action="store_true")
    o = a.parse_args()
    work, deadline = os.path.abspath(o.work), start + o.budget
    case_limit = o.limit
    makers = {"tiny": tiny_cases, "full": full_cases, "steps": steps_cases, "faults": faults_cases, "ends": ends_cases}
    parts = o.parts or list(makers)
    bad = [p for p in parts if p not in makers and p != "rows"]
    if bad:
        a.error(f"there is no part {bad[0]}: tiny, full, steps, faults, ends, rows")
    cases = [c for p in makers if p in parts for c in makers[p]()]
    if "rows" in parts:
        cases += [c for p in makers if p not in parts and p != "ends" for c in makers[p]() if c.rows]
    cases = [c for c in cases if not o.only or re.search(o.only, c.name)]
    if o.list:
        for c in cases:
            print(c.part, c.name, *(f"row{r}" for r in c.rows))
        return 0
    os.makedirs(os.path.join(work, "logs"), exist_ok=True)
    signal.signal(signal.SIGTERM, on_term)
    signal.signal(signal.SIGINT, on_term)
    os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    ids(os.path.join(work, "ids-tiny.bin"), 400000, 300)
    if not EMU and any(c.heavy for c in cases):
        ids(os.path.join(work, "ids-full.bin"), 2000000, 50000)
    before_shm = shm()
    # one worker first: it chooses the algorithms of products, which all others then read
    for heavy in sorted({c.heavy for c in cases if c.part != "faults"}):
        try:
            reference(FULL if heavy else TINY, FULL_STEPS if heavy else TINY_STEPS)
        except Failed as why:
            say(f"one worker: {why}")
    run_pools([c for c in cases if c.part != "faults"], o.jobs, o.full_jobs, o.ranks)
    use_mps = False
    run_pools([c for c in cases if c.part == "faults"], 2 if EMU else 4, 1, 8)
    return summary(before_shm)


start, work, deadline, case_limit, use_mps = time.monotonic(), "", 0.0, 0.0, True
if __name__ == "__main__":
    sys.exit(main())
