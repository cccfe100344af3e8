#!/usr/bin/env python3
"""Metrics files as the ZeRO scaling study (docs/REFERENCES.md) writes them, with invented numbers, for tests of tables and comparisons.

    reference_runs.py DIR       DIR/{1,2,4}gpu.json        one run each; 1 GPU has another precision than 2 and 4
                                DIR/repeat/NgpuK.json      three runs each of 1, 2 and 4 GPUs
                                DIR/study/NAME/            run folders of a study of buckets on 8 GPUs: `base` and `bucket`, 300 micro-batches each,
                                                           and `bucket_nsys80`, 80 micro-batches under nsys
                                DIR/expected.json          the expected results of a comparison of DIR/repeat, by Python's statistics

The baseline is PyTorch on one GPU (fp16_torch_amp), the other runs use DeepSpeed, so precision, ZeRO stage and the use of DeepSpeed differ.
"""
import json
import os
import statistics
import sys


def run(n, seconds, rate, k=1):
    baseline = n == 1
    epoch = {"epoch_idx": 1, "epoch_wall_time_sec": seconds, "steps": 40, "micro_steps": 40, "optimizer_steps": 10,
             "tokens_processed_global": int(rate * seconds), "tokens_per_sec_global": rate, "train_loss_avg_global": 3.5, "val_loss_avg_global": 3.6,
             "step_time_mean_sec": 0.25, "step_time_p50_sec": 0.24, "step_time_p95_sec": 0.3, "dataload_time_mean_sec": 0.01,
             "max_cuda_mem_allocated_bytes_rank0": 2 << 30, "max_cuda_mem_allocated_bytes_global": 2 << 30}
    return {"schema_version": "2.0", "run_id": f"made-{n}-{k}", "timestamp_utc": "2026-01-01T00:00:00Z", "git_commit": "unknown",
            "command_line": f"train.py --gpus {n}",
            "env": {"python_version": "3.11.2", "torch_version": "2.5.0", "transformers_version": "4.46.0", "deepspeed_version": "0.15.0", "cuda_version": "12.4"},
            "host": {"hostname": "node-a", "os": "Linux"}, "hardware": {"gpu_name": "Made GPU", "gpu_count_visible": n, "world_size": n},
            "training_config": {"model_name": "gpt2", "model_size": "n_layer=12, n_head=12, n_embd=768", "seq_len": 512, "epochs": 1,
                                "micro_batch_size_per_gpu": 4, "grad_accum_steps": 4 // n, "global_batch_size": 16, "lr": 1e-4, "optimizer": "AdamW",
                                "precision": "fp16_torch_amp" if baseline else "fp16_deepspeed", "zero_stage": 0 if baseline else 1,
                                "dataset_name": "made", "dataset_subset_sizes": {"train": 640, "val": 64}, "deepspeed_enabled": not baseline},
            "deepspeed_config": {"path": "ds.json", "sha256": "00", "selected": {"fp16_enabled": True, "wall_clock_breakdown": False}},
            "epochs": [epoch], "summary": {"total_wall_time_sec": seconds, "mean_tokens_per_sec_global": rate}}


def study(out):
    for name, steps, rate, p95, more in (("base", 300, 29500.0, 0.078, ""), ("bucket", 300, 35300.0, 0.064, ""), ("bucket_nsys80", 80, 24200.0, 0.088, " --max_val_steps 0")):
        folder = os.path.join(out, "study", name)
        os.makedirs(os.path.join(folder, "profiles"), exist_ok=True)
        r = run(8, steps * 8192 / rate, rate)
        r["command_line"] = f"src/trainer.py --run_type optimized --checkpoint_path /scratch/{name} --epochs 1 --profile_mode --max_train_steps {steps}" + more
        r["deepspeed_config"]["sha256"] = "ab" * 32 if name == "base" else "cd" * 32
        r["training_config"].update(micro_batch_size_per_gpu=2, grad_accum_steps=2, global_batch_size=32)
        r["epochs"][0].update(steps=steps, micro_steps=steps, optimizer_steps=steps // 2, tokens_processed_global=steps * 8192, step_time_p95_sec=p95,
                              step_time_mean_sec=p95 * 0.9, step_time_p50_sec=p95 * 0.85)
        with open(os.path.join(folder, "training_metrics.json"), "w") as f:
            json.dump(r, f, indent=2)
        if "nsys" in name:
            with open(os.path.join(folder, "profiles", "nsys_stats_node-a.txt"), "w") as f:
                f.write(" ** NVTX Range Summary (nvtx_sum):\n\n Time (%)  Total Time (ns)  Instances  Avg (ns)  Style  Range\n"
                        " 24.5  6,214,257,060  320  19,419,553.1  PushPop  :train/backward\n 8.3  2,112,305,750  520  4,062,126.4  PushPop  NCCL:ncclAllReduce\n")


def main(out):
    study(out)
    once = {1: (40.0, 1000.0), 2: (20.8, 1920.0), 4: (11.5, 3400.0)}
    repeat = {1: [(12.0, 205.0), (12.4, 199.0), (11.9, 208.0)], 2: [(6.5, 380.0), (6.3, 391.0), (6.6, 374.0)], 4: [(3.6, 690.0), (3.5, 702.0), (3.7, 671.0)]}
    os.makedirs(os.path.join(out, "repeat"), exist_ok=True)
    expected = {}
    for n, (seconds, rate) in once.items():
        with open(os.path.join(out, f"{n}gpu.json"), "w") as f:
            json.dump(run(n, seconds, rate), f, indent=2)
    first, base = repeat[1][0][1], statistics.geometric_mean(r for _, r in repeat[1])  # the scaling study divides by the first run of one GPU, whose group is 1 by definition
    for n, rows in repeat.items():
        for k, (seconds, rate) in enumerate(rows, 1):
            with open(os.path.join(out, "repeat", f"{n}gpu{k}.json"), "w") as f:
                json.dump(run(n, seconds, rate, k), f, indent=2)
        times, rates = [s for s, _ in rows], [r for _, r in rows]
        speedup, over_mean = 1.0 if n == 1 else statistics.mean(rates) / first, statistics.geometric_mean(rates) / base
        expected[n] = {"mean_tokens_per_sec_global": statistics.mean(rates), "stdev_tokens_per_sec_global": statistics.stdev(rates),
                       "mean_epoch_wall_time_sec": statistics.mean(times), "stdev_epoch_wall_time_sec": statistics.stdev(times),
                       "speedup_vs_1gpu": speedup, "scaling_efficiency": speedup / n,
                       "speedup_vs_mean": over_mean, "efficiency_vs_mean": over_mean / n}
    with open(os.path.join(out, "expected.json"), "w") as f:
        json.dump({"once": once, "repeat": expected}, f)


main(sys.argv[1])
