"""Shared by the comparison benchmarks: sizes of the models, statistics of interleaved rounds, and a description of the machine."""
import importlib.util
import json
import math
import os
import platform
import signal
import statistics
import subprocess
import sys

T95 = [12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131]


SIZES = {  # layers, heads, width, positions
    "tiny": (4, 4, 128, 256),
    "gpt2": (12, 12, 768, 1024),
    "gpt2-medium": (24, 16, 1024, 1024),
    "gpt2-large": (36, 20, 1280, 1024),
    "gpt2-xl": (48, 25, 1600, 1024),
}


def t95(freedom):
    """Student's t at 97.5 %: a table, and beyond it the expansion about the normal distribution, whose error is below 0.001 there."""
    if freedom <= len(T95):
        return T95[freedom - 1]
    z = statistics.NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def mean_interval(x):
    """95 % interval of the mean (Student's t). None for fewer than two."""
    if len(x) < 2:
        return None
    half = t95(len(x) - 1) * statistics.stdev(x) / math.sqrt(len(x))
    mid = statistics.fmean(x)
    return [mid - half, mid + half]


def interval(ratios):
    """95 % interval of the mean ratio, over logarithms, as ratios multiply. None for fewer than two."""
    found = mean_interval([math.log(r) for r in ratios])
    return found and [math.exp(v) for v in found]


def describe(ratios):
    i = interval(ratios)
    words = f"median {statistics.median(ratios):.2f} of {len(ratios)} rounds, {min(ratios):.2f} to {max(ratios):.2f}"
    return words + (f", 95 % interval {i[0]:.2f} to {i[1]:.2f}" if i else "")


def cores():
    return len(os.sched_getaffinity(0))


def numbers(text):
    """A list of the kernel, as 0-3,8"""
    out = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            out += range(int(first), int(last or first) + 1)
    return out


def cpus():
    """The CPUs of this process in the order in which lockstep hands them out: by NUMA node, then by physical core (src/core/cores.h)."""
    def read(path):
        try:
            with open("/sys/devices/system/" + path) as f:
                return numbers(f.read())
        except OSError:
            return []
    node = {c: n for n in read("node/online") for c in read(f"node/node{n}/cpulist")}
    return sorted(os.sched_getaffinity(0), key=lambda c: (node.get(c, 0), min(read(f"cpu/cpu{c}/topology/thread_siblings_list") or [c]), c))


def machine():
    name = ""
    try:
        with open("/proc/cpuinfo") as f:
            lines = [line.split(":", 1) for line in f if ":" in line]
        name = next((v.strip() for k, v in lines if k.strip() == "model name"), "")
        part = next((v.strip() for k, v in lines if k.strip() == "CPU part"), "")
        name = name or {"0xd40": "Neoverse-V1", "0xd4f": "Neoverse-V2", "0xd0c": "Neoverse-N1"}.get(part, part)
    except OSError:
        pass
    return f"{platform.machine()}, {cores()} cores, {name or 'unknown CPU'}"


def load():
    return f"load average before the run {os.getloadavg()[0]:.1f}"


def check_program(parser, path, option="--lockstep"):
    """Ends the script with one line if the program does not exist."""
    if not (os.path.isfile(path) and os.access(path, os.X_OK)):
        parser.error(f"no program {path}: build it, or name it with {option}")


def check_out(parser, path, option="--out"):
    """The real path of a file that is written later and replaced as a whole, which must not replace a link. Ends the script with one line if it cannot be written."""
    path = os.path.realpath(path)
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            raise OSError("it is not a file")
        with open(path + ".new", "w"):
            pass
        os.remove(path + ".new")
    except OSError as e:
        parser.error(f"{option} {path} cannot be written: {e.strerror or e}")
    return path


def check_modules(parser, *names):
    """Ends the script with one line if a module that it needs is not installed."""
    missing = [n for n in names if importlib.util.find_spec(n) is None]
    if missing:
        parser.error(f"this script needs {' and '.join(missing)}: pip install {' '.join(missing)}")


def has_bf16(lockstep):
    """Whether the CPU has bf16 instructions; without them --precision bf16 is emulated. Variables that choose kernels or the device do not change it."""
    env = {k: v for k, v in os.environ.items() if k not in ("LS_GEMM", "LS_SIMD", "LS_DEVICE")}
    r = subprocess.run([lockstep, "doctor", "--json"], capture_output=True, text=True, env=env)
    try:
        row = next(p for p in json.loads(r.stdout)["parts"] if p["name"] == "compute")
    except (ValueError, LookupError, StopIteration):
        sys.exit(f"{lockstep} doctor --json does not say what this CPU has: {r.stderr.strip() or r.stdout[:200]}")
    if row["state"] != "ok":
        sys.exit(f"{lockstep} doctor: {row['text']}")
    return "no bf16 instructions" not in row["text"]


class Ended(BaseException):
    """By a signal: neither an Exception nor a SystemExit, so that nothing but `finally` and `with` sees it."""


def end_on_sigterm():
    """SIGTERM and Ctrl-C end the script after its `finally` and `with` blocks, with exit code 128 + signal and without a traceback."""
    def end(number, frame):
        for s in (signal.SIGINT, signal.SIGTERM):
            signal.signal(s, lambda *_: None)  # a second signal must not interrupt the cleaning
        raise Ended(number)

    def hook(kind, why, trace):
        if kind is Ended:
            sys.exit(128 + why.args[0])
        sys.__excepthook__(kind, why, trace)
    sys.excepthook = hook
    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)
