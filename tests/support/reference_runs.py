#!/usr/bin/env python3
"""Metrics files as R1 (docs/REFERENCES.md) writes them, with invented numbers, for tests of tables and comparisons.

    reference_runs.py DIR       DIR/{1,2,4}gpu.json        one run each; 1 GPU has another precision than 2 and 4
                                DIR/repeat/NgpuK.json      three runs each of 1, 2 and 4 GPUs
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


def main(out):
    once = {1: (40.0, 1000.0), 2: (20.8, 1920.0), 4: (11.5, 3400.0)}
    repeat = {1: [(12.0, 205.0), (12.4, 199.0), (11.9, 208.0)], 2: [(6.5, 380.0), (6.3, 391.0), (6.6, 374.0)], 4: [(3.6, 690.0), (3.5, 702.0), (3.7, 671.0)]}
    os.makedirs(os.path.join(out, "repeat"), exist_ok=True)
    expected = {}
    for n, (seconds, rate) in once.items():
        with open(os.path.join(out, f"{n}gpu.json"), "w") as f:
            json.dump(run(n, seconds, rate), f, indent=2)
    first, base = repeat[1][0][1], statistics.mean(r for _, r in repeat[1])  # R1 divides by the first run of one GPU, whose group is 1 by definition
    for n, rows in repeat.items():
        for k, (seconds, rate) in enumerate(rows, 1):
            with open(os.path.join(out, "repeat", f"{n}gpu{k}.json"), "w") as f:
                json.dump(run(n, seconds, rate, k), f, indent=2)
        times, rates = [s for s, _ in rows], [r for _, r in rows]
        speedup, over_mean = 1.0 if n == 1 else statistics.mean(rates) / first, statistics.mean(rates) / base
        expected[n] = {"mean_tokens_per_sec_global": statistics.mean(rates), "stdev_tokens_per_sec_global": statistics.stdev(rates),
                       "mean_epoch_wall_time_sec": statistics.mean(times), "stdev_epoch_wall_time_sec": statistics.stdev(times),
                       "speedup_vs_1gpu": speedup, "scaling_efficiency": speedup / n,
                       "speedup_vs_mean": over_mean, "efficiency_vs_mean": over_mean / n}
    with open(os.path.join(out, "expected.json"), "w") as f:
        json.dump({"once": once, "repeat": expected}, f)


main(sys.argv[1])
