"""The runs of the net, a function per golden. Sizes, seeds and threads are given, so that nothing is chosen from a measurement."""
import json
import os
import random
import shutil
import subprocess
import sys

from run import LOCKSTEP, SOURCE, Skipped

SMALL = ["--model", "tiny", "--num_layers", 2, "--num_heads", 2, "--embedding_size", 16, "--seq_length", 16, "--micro_batch_size_per_gpu", 1, "--threads", 1]
BENCH = ["--repeat", 2, "--steps", 4, "--warmup", 1]


def make_data(c):
    """A folder `data` from `lockstep prepare`."""
    shutil.copy(SOURCE / "tests" / "data" / "bpe" / "text.txt", c.path("text.txt"))
    c.run("prepare", "--input", "text.txt", "--out", "data", "--tokenizer", "train", "--vocab_size", 280, "--val_fraction", 0.1, "--threads", 1, "--quiet")


def make_pairs(c):
    r = random.Random(1)
    with open(c.path("pairs.tsv"), "w") as f:
        for _ in range(40):
            n = r.randrange(9)
            f.write(f"das wort{n}\tthe word{n}\n")
    c.run("prepare", "--task", "translate", "--quiet", "--input", "pairs.tsv", "--test_input", "pairs.tsv", "--limit_test", 2, "--vocab_size", 280, "--val_fraction", 0.1,
          "--out", "pairs")


def made_runs(c):
    subprocess.run([sys.executable, SOURCE / "tests" / "support" / "reference_runs.py", c.path("made")], check=True)


def case_prepare(c):
    """prepare: a text as one file, as shards, with the header of llm.c, as lines of bytes; with --json"""
    make_data(c)
    c.keep("data")
    c.run("prepare", "text.txt", "--out", "shards", "--tokenizer", "data", "--shard_tokens", 8000, "--val_fraction", 0, "--threads", 1, "--json", "--quiet")
    c.run("prepare", "text.txt", "--out", "llmc", "--tokenizer", "bytes", "--lines", "--dedup", "--llmc", "--threads", 1)
    c.keep("shards")
    c.keep("llmc")


def case_translate(c):
    """prepare and train --task translate"""
    make_pairs(c)
    c.keep("pairs")
    c.run("train", "--task", "translate", "--data", "pairs", "--model", "tiny", "--num_layers", 1, "--num_heads", 2, "--embedding_size", 16, "--seq_length", 24,
          "--micro_batch_size_per_gpu", 8, "--max_steps", 3, "--threads", 1, "--checkpoint_path", "run")
    c.keep("run")


def case_train(c):
    """train: one worker with every kind of file that a run can write on the CPU"""
    make_data(c)
    c.run("train", "--data", "data", *SMALL, "--epochs", 2, "--max_steps", 4, "--max_train_steps", 2, "--max_val_steps", 2, "--save_every", 1, "--eval_every", 1,
          "--timing_warmup_steps", 0, "--timing_sample_every", 1, "--profile", "--cluster", "box", "--tensorboard", "events", "--checkpoint_path", "run",
          env={"DIST_DEBUG": "1"})
    c.keep("run")
    c.keep("events")


def case_workers(c):
    """train: the scaling study's output with a DeepSpeed JSON on two workers; a pipeline"""
    make_data(c)
    with open(c.path("ds.json"), "w") as f:
        json.dump({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "steps_per_print": 1, "wall_clock_breakdown": True,
                   "zero_optimization": {"stage": 1}, "csv_monitor": {"enabled": True, "output_path": "csv", "job_name": "job"}}, f)
    slurm = {"SLURM_JOB_ID": "1", "SLURM_NODELIST": "n", "SLURM_HOSTS": "n", "SLURM_NNODES": "1", "SLURM_JOB_PARTITION": "p", "NCCL_ALGO": "Ring"}
    c.run("train", "--data", "data", *SMALL, "-n", 2, "--run_type", "optimized", "--deepspeed_config", "ds.json", "--precision", "fp32", "--max_steps", 3, "--max_val_steps", 2,
          "--checkpoint_path", "zero", env=slurm, ordered=False)
    c.keep("zero")
    c.keep("csv")
    c.run("train", "--data", "data", *SMALL, "-n", 2, "--pp", 2, "--schedule", "1f1b", "--grad_accum_steps", 2, "--max_steps", 2, "--max_val_steps", 1, "--checkpoint_path", "pipe",
          ordered=False)
    c.keep("pipe")


def case_resume(c):
    """train, stopped by a signal and resumed, then another run in the same folder"""
    make_data(c)
    c.run("train", "--data", "data", *SMALL, "--max_steps", 4, "--max_val_steps", 1, "--checkpoint_path", "run", env={"LOCKSTEP_FAULT": "kind=term,step=3"})
    c.run("train", "--resume", "run", "--threads", 1)
    c.keep("run")
    c.run("train", "--data", "data", *SMALL, "--max_steps", 1, "--max_val_steps", 0, "--checkpoint_path", "run")
    c.keep("run", "run/earlier-1/*")
    c.run("train", "--resume", "missing")


def case_failure(c):
    """train --max_restarts: a worker is killed; a bit flips and an audit finds it; a run that gives up"""
    make_data(c)
    c.run("train", "--data", "data", *SMALL, "--max_val_steps", 0, "--max_steps", 4, "--save_every", 2, "--max_restarts", 2, "--checkpoint_path", "killed",
          env={"LOCKSTEP_FAULT": "kind=kill,step=4"})
    c.keep("killed")
    c.run("train", "--data", "data", *SMALL, "-n", 2, "--global_batch_size", 2, "--max_val_steps", 0, "--strategy", "ddp", "--max_steps", 3, "--save_every", 2, "--audit", 1,
          "--audit_depth", "step", "--max_restarts", 2, "--checkpoint_path", "flipped",
          env={"LOCKSTEP_FAULT": "kind=flip,tensor=param,rank=1,step=3"}, ordered=False)
    c.keep("flipped")
    c.run("train", "--data", "data", *SMALL, "--max_val_steps", 0, "--max_steps", 2, "--max_restarts", 1, "--checkpoint_path", "given_up",
          env={"LOCKSTEP_FAULT": "kind=kill,step=1,attempt=0,count=9"})
    c.keep("given_up")


def bench(c, what, options, more=()):
    """Two turns; then the same command on the finished runs with all times replaced by fixed ones: the tables and the report have all their digits."""
    args = ["bench", what, *BENCH, *options, "--", "--data", "data", *SMALL, "--max_val_steps", 0, *more]
    c.run(*args[:2], "--out", "measured", *args[2:], rules="measured.")
    c.keep("measured", "measured/*/*")
    c.freeze("measured", what)
    c.run(*args[:2], "--out", what, "--resume", *args[2:], rules="fixed/")
    c.keep(what, f"{what}/*_report.json", rules="fixed/")


def case_ab(c):
    """bench ab, two turns; of runs with fixed numbers; its page"""
    make_data(c)
    bench(c, "ab", ["-n", 1, "--a", "--recompute", "--b", ""])
    c.run("report", "ab", "--no_png", "--out", "page", rules="fixed/")
    c.keep("page", rules="fixed/")
    made_runs(c)
    c.run("bench", "ab", "made/study/base", "made/study/bucket", "--out", "study", rules="fixed/")
    c.keep("study", rules="fixed/")


def case_strategies(c):
    """bench strategies, two turns; its page"""
    make_data(c)
    bench(c, "strategies", ["-n", "1,2", "--layouts", "ddp,zero1"], ["--global_batch_size", 2])
    c.run("report", "strategies", "--no_png", "--out", "page", rules="fixed/")
    c.keep("page", rules="fixed/")


def case_report(c):
    """report and its tools: runs with fixed numbers, a run that was restarted, runs that are not comparable, missing ones"""
    made_runs(c)
    c.run("report", "made/repeat", "--no_png", "--out", "repeat", "--json", rules="fixed/")
    c.keep("repeat", rules="fixed/")
    c.run("bench", "scaling", "made/repeat", "--json", rules="fixed/")
    c.run("report", "table", "--gpu1", "made/1gpu.json", "--gpu2", "made/2gpu.json", "--gpu4", "made/4gpu.json", rules="fixed/")
    c.run("report", "charts", "--help", rules="fixed/")
    make_data(c)
    c.run("train", "--data", "data", *SMALL, "--max_val_steps", 1, "--max_steps", 4, "--save_every", 2, "--max_restarts", 2, "--profile", "--checkpoint_path", "measured",
          env={"LOCKSTEP_FAULT": "kind=kill,step=4"}, rules="measured.")
    c.freeze("measured", "run")
    c.run("profile", "summarize", "--run_dir", "run", rules="fixed/")
    c.keep("run", "run/profiles/profile_summary.json", rules="fixed/")
    c.run("report", "run", "--no_png", "--out", "interrupted", rules="fixed/")
    c.keep("interrupted", rules="fixed/")
    c.run("report", "run", "made/study/base", "missing", "--no_png", "--out", "apart", rules="fixed/")
    with open(c.path("run", "training_metrics.json")) as f, open(c.path("longer.json"), "w") as g:
        g.write(f.read().replace('"seq_len": 16', '"seq_len": 32').replace('"world_size": 1', '"world_size": 2'))
    c.run("report", "run", "longer.json", "--no_png", "--out", "unlike", rules="fixed/")
    c.keep("unlike", "*.json", rules="fixed/")
    c.run("report", "verify", "--dir", "made", rules="fixed/")


def case_pictures(c):
    """the charts of a report as PNG (where rsvg-convert is installed)"""
    if not shutil.which("rsvg-convert"):
        raise Skipped("rsvg-convert is not installed (package librsvg2-bin)")
    made_runs(c)
    c.run("report", "made/repeat", "--out", "repeat", rules="fixed/")
    c.keep("repeat", "*/throughput.png", rules="fixed/")
    c.keep("repeat", "*/waterfall.png", rules="fixed/")
    c.run("report", "charts", "--baseline_json", "made/1gpu.json", "--optimized_json", "made/4gpu.json", "--out", "pair", rules="fixed/")
    c.keep("pair", "*_time_comparison.png", rules="fixed/")


def case_drill(c):
    """drill: the folders of a full disk, and the rows of two faults"""
    c.run("drill", "--faults", 1, "--seed", 3, "--kinds", "io_error", "--strategy", "ddp", "-n", 2, "--out", "drill")
    c.keep("drill")
    c.run("drill", "--faults", 1, "--kinds", "kill", "--strategy", "ddp", "-n", 2, "--json")


def case_nccl(c):
    """train on two GPUs over NCCL, with the variables that NCCL_LOGS=1 sets in scripts/slurm: names of files, keys, types, texts. For a machine with a GPU"""
    plugins = os.environ.get("LS_PLUGIN_DIR", os.path.dirname(LOCKSTEP))
    missing = [p for p in ("lockstep_cuda.so", "lockstep_nccl.so") if not os.path.exists(os.path.join(plugins, p))]
    if missing:
        raise Skipped(f"{plugins} has no {' and no '.join(missing)}")
    found = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.count("GPU ") if shutil.which("nvidia-smi") else 0
    if not found:
        raise Skipped("no GPU (nvidia-smi -L lists none)")
    toggles = "NCCL_LOGS=1 NSYS=0 DIST_DEBUG=0; . scripts/slurm/lib.sh; toggles; env -0"
    given = subprocess.run(["bash", "-c", toggles], cwd=SOURCE, env=c.env | {"RUN_DIR": c.path("run"), "NCCL_SOCKET_IFNAME": "lo"}, capture_output=True, text=True, check=True).stdout
    env = {k: v for k, v in (x.split("=", 1) for x in given.split("\0") if "=" in x) if "NCCL_" in k}
    env |= {"LS_DEVICE": "cuda", "LS_PLUGIN_DIR": plugins, "LS_GEMM_TUNE": "0"} | ({"NCCL_MULTI_RANK_GPU_ENABLE": "1"} if found == 1 else {})
    env |= {k: v for k, v in os.environ.items() if k.startswith("LS_EMU_")}
    make_data(c)
    os.makedirs(c.path("run"))
    c.run("train", "--data", "data", *SMALL, "--embedding_size", 128, "-n", 2, "--strategy", "zero1", "--comm", "nccl", "--nccl_proof", "full", "--precision", "fp32", "--max_steps", 3,
          "--max_val_steps", 1, "--checkpoint_path", "run", env=env, ordered=False, rules="nccl.")
    c.keep("run", rules="nccl/")
