"""All-reduce of 500 MB of floats on one host: lockstep (deterministic, shared memory) and MPI_Allreduce of Open MPI, alternating.

perf/allreduce.c is the source of both programs; mpicc compiles the MPI one here. A round runs lockstep, then Open MPI with
every possible setting: `bound` (one core per rank, the default, if there are enough cores) and `yield` (unbound ranks that
yield when idle, for more ranks than cores). The ratio of a round is the bus bandwidth of lockstep (nccl-tests: 2(N-1)/N
x bytes / seconds, of the median call) over the best of Open MPI. Sums are checked on both sides.

  python perf/allreduce_vs_mpi.py [--workers 2,4] [--mb 500] [--rounds 5] [--calls 5] [--budget-s S] [--json] [--out FILE]
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile

import compare
import workers as w

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
SETTINGS = {
    "bound": (["--bind-to", "core"], {}),
    "yield": (["--oversubscribe"], {"OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}),
}


def run(args, env=None, limit=120):
    """The JSON line of a program, or words on why there is none."""
    g = w.Group()
    with tempfile.TemporaryFile() as out:
        g.start(args, w.cores(10**6), dict(os.environ, **(env or {})), out)
        well = g.wait(min(limit, 120))
        out.seek(0)
        lines = [x for x in out.read().decode(errors="replace").splitlines() if x.startswith("{")]
    return json.loads(lines[-1]) if well and lines else {"refused": g.words()}


def version():
    try:
        return subprocess.run(["mpirun", "--version"], capture_output=True, text=True, timeout=20).stdout.splitlines()[0]
    except (OSError, subprocess.TimeoutExpired, IndexError):
        return "no mpirun"


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("--allreduce", default=os.path.join(os.environ.get("LS_BUILD", "build"), "allreduce"),
                   help="all-reduce benchmark of lockstep, built by CMake")
    a.add_argument("--workers", default="2,4")
    a.add_argument("--mb", type=float, default=500)
    a.add_argument("--rounds", type=int, default=5)
    a.add_argument("--calls", type=int, default=5, help="timed calls per process")
    a.add_argument("--budget-s", type=float, default=0)
    a.add_argument("--json", action="store_true")
    a.add_argument("--out")
    o = a.parse_args()
    compare.check_program(a, o.allreduce, "--allreduce")
    compare.end_on_sigterm()
    counts, mib = [int(x) for x in o.workers.split(",")], o.mb * 1e6 / 1048576
    head = {"machine": compare.machine(), "load": compare.load(), "mpi": version(), "bytes": o.mb * 1e6}
    budget, rounds, refused = w.Budget(o.budget_s), {n: [] for n in counts}, {}

    def result():
        out = {**head, "refused": refused, "workers": {}}
        for n in counts:
            ratios = [r["ratio"] for r in rounds[n] if "ratio" in r]
            mine = [r["ours"] for r in rounds[n] if "ours" in r]
            out["workers"][n] = {"rounds": rounds[n], "ours": statistics.median(mine) if mine else None,
                                 "median_ratio": statistics.median(ratios) if ratios else None,
                                 "interval_95": compare.interval(ratios)}
        return out

    with tempfile.TemporaryDirectory(prefix="lockstep-allreduce-") as work:
        peer = os.path.join(work, "allreduce_mpi")
        if not shutil.which("mpicc") or not shutil.which("mpirun"):
            refused["mpi"] = "no mpicc and mpirun here"
        elif subprocess.run(["mpicc", "-O2", "-DUSE_MPI", os.path.join(HERE, "allreduce.c"), "-o", peer]).returncode:
            refused["mpi"] = "mpicc cannot compile perf/allreduce.c"
        for number in range(o.rounds):
            for n in counts:
                same = ["--mib", mib, "--rounds", o.calls]
                row = {}
                r = budget.run(f"ours x{n}", run, [o.allreduce, "--workers", n] + same)
                if r and "refused" in r:
                    raise SystemExit(f"lockstep does not run: {r['refused']}")
                if not r:
                    continue
                row["ours"], row["ours_seconds"] = r["busbw_bytes_per_sec"], r["seconds"]
                for name, (args, env) in SETTINGS.items():
                    key = f"{name} x{n}"
                    if "mpi" in refused or key in refused or (name == "bound" and n > compare.cores()):
                        continue
                    r = budget.run(key, run, ["mpirun"] + args + ["-n", n, peer] + same, {**ROOT, **env})
                    if r and "refused" in r:
                        refused[key] = r["refused"]
                        w.say(f"  Open MPI {key}: {r['refused']}")
                    elif r:
                        row[name], row[name + "_seconds"] = r["busbw_bytes_per_sec"], r["seconds"]
                best = max((row[k] for k in SETTINGS if k in row), default=0)
                if best:
                    row["ratio"] = row["ours"] / best
                rounds[n].append(row)
                w.say(f"round {number + 1}, {n} workers: " + ", ".join(
                    f"{k} {row[k] / 1e9:.2f} GB/s" for k in ("ours", *SETTINGS) if k in row) +
                    (f": {row['ratio']:.2f} x" if best else ""))
                if o.out:
                    with open(o.out, "w") as f:
                        json.dump(result(), f, indent=1)
    found = result()
    if o.json:
        print(json.dumps(found, indent=2))
        return
    print(f"all-reduce of {o.mb:g} MB, bus bandwidth; {head['machine']}; {head['mpi']}; {head['load']}")
    for n in counts:
        ratios = [r["ratio"] for r in rounds[n] if "ratio" in r]
        for k in ("ours", *SETTINGS):
            values = [r[k] for r in rounds[n] if k in r]
            if values:
                print(f"{n} workers, {'ours' if k == 'ours' else 'Open MPI ' + k}: {statistics.median(values) / 1e9:.2f} GB/s")
        if ratios:
            print(f"{n} workers, ratio: {compare.describe(ratios)}")


if __name__ == "__main__":
    main()
