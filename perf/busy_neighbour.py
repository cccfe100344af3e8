#!/usr/bin/env python3
"""What training keeps of its speed beside a job of two threads, compared with a program of the same products whose threads sleep while they wait.

usage: perf/busy_neighbour.py [--lockstep build/lockstep] [--data FOLDER of train.bin] [--neighbour spin|lockstep] [--workers 1] [--tries 10] [--seconds 4]

Each try runs four windows in turns: the program and training, alone and beside the neighbour. A share is the speed beside it, over the median speed
alone; the result is the share of training over that of the program. Other programs on the machine disturb both."""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
MODEL = ("--num_layers 4 --num_heads 6 --embedding_size 192 --seq_length 128 --micro_batch_size_per_gpu 4 --global_batch_size 8 "
         "--max_steps 1000000 --save_every 0 --eval_every 0").split()


def start(command):
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def stop(process):
    if process and process.poll() is None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def training(o, folder):
    return [o.lockstep, "train", "--data", o.data, *MODEL, "-n", str(o.workers), "--checkpoint_path", folder]


def steps_per_second(o, folder):
    """Of the steps that ended in the window, which begins with the first one."""
    run = start(training(o, folder))
    metrics = pathlib.Path(folder, "metrics.jsonl")
    try:
        limit = time.time() + 30
        while not (metrics.exists() and '"step"' in metrics.read_text()) and time.time() < limit:
            time.sleep(0.05)
        time.sleep(o.seconds)
    finally:
        stop(run)
    times = [json.loads(x)["step_time_sec"] for x in metrics.read_text().splitlines() if x.startswith('{"step"')][1:]
    return len(times) / sum(times) if times else 1 / (30 + o.seconds)


def products_per_second(o):
    return float(start([o.program, "sleep", str(o.seconds)]).communicate()[0])


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--lockstep", default=str(HERE.parent / "build" / "lockstep"))
    p.add_argument("--data", required=True, help="folder of `lockstep prepare`")
    p.add_argument("--neighbour", choices=("spin", "lockstep"), default="spin")
    p.add_argument("--workers", type=int, default=1)
    p.add_argument("--tries", type=int, default=10)
    p.add_argument("--seconds", type=float, default=4)
    o = p.parse_args()
    with tempfile.TemporaryDirectory() as work:
        o.program = work + "/busy_neighbour"
        subprocess.run(["cc", "-O3", "-march=native", "-pthread", str(HERE / "busy_neighbour.c"), "-o", o.program], check=True)
        alone, beside = {"products": [], "training": []}, {"products": [], "training": []}
        for i in range(o.tries):
            for busy in (False, True) if i % 2 else (True, False):
                neighbour = None
                if busy:
                    beside_run = argparse.Namespace(**{**vars(o), "workers": 1})
                    neighbour = start([o.program, "spin", "1000"] if o.neighbour == "spin" else training(beside_run, f"{work}/neighbour{i}"))
                    time.sleep(1)
                try:
                    into = beside if busy else alone
                    into["products"].append(products_per_second(o))
                    into["training"].append(steps_per_second(o, f"{work}/run{i}{busy}"))
                finally:
                    stop(neighbour)
        share = {k: [x / statistics.median(alone[k]) for x in beside[k]] for k in alone}
        ratios = [a / b for a, b in zip(share["training"], share["products"])]
        for k in alone:
            print(f"{k}: alone {statistics.median(alone[k]):.2f} per second, beside the job {statistics.median(share[k]):.2f} of it "
                  f"({min(share[k]):.2f} to {max(share[k]):.2f})")
        print(f"training over products: median {statistics.median(ratios):.2f}, least {min(ratios):.2f}, of {len(ratios)} tries")
    return 0


if __name__ == "__main__":
    sys.exit(main())
