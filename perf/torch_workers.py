"""One worker of the PyTorch side of perf/workers_vs_torch.py: DDP, or DeepSpeed ZeRO-1, 2, 3, on CPU over gloo.
(ls-bench: by name; started by other scripts.)

The model is that of perf/torch_gpt2.py. A step does the same work as in lockstep: `accumulation` micro-batches forward and
backward, gradients averaged over workers, clipping at norm 1, AdamW, no dropout. fp32, or with --bf16: forward under autocast (ddp), the
bf16 mode of DeepSpeed with fp32 master weights (zeroN).

  ddp    DistributedDataParallel, gradient_as_bucket_view, no_sync for all but the last micro-batch, fused AdamW if available
  zeroN  deepspeed.initialize with that stage, overlap_comm, contiguous_gradients. Adam is the CPU Adam of DeepSpeed if its C++
         extension compiles here, else the fused Adam of torch. Its shared-memory all-reduce is used if it compiles, else gloo.
         The output names both.

Worker r uses the r-th share of the available cores and as many threads, set before PyTorch is imported.
The driver starts all workers with RANK, WORLD_SIZE and a rendezvous file; they communicate over the
loopback device. Rank 0 prints one JSON line: seconds of each step (the first included), losses, peak resident memory
of each worker.
"""
import argparse
import contextlib
import json
import os
import resource
import time

import compare


def options():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("--peer", required=True, choices=["ddp", "zero1", "zero2", "zero3"])
    a.add_argument("--meet", required=True, help="rendezvous file that does not exist yet, the same for all workers")
    a.add_argument("--data", required=True, help="file of 16-bit ids, little-endian")
    a.add_argument("--model", default="gpt2")
    a.add_argument("--seq", type=int, default=512)
    a.add_argument("--micro", type=int, default=2, help="sequences per micro-batch")
    a.add_argument("--accumulation", type=int, default=1)
    a.add_argument("--steps", type=int, default=3)
    a.add_argument("--threads", type=int, default=1)
    a.add_argument("--compile", action="store_true")
    a.add_argument("--bf16", action="store_true")
    a.add_argument("--no-cpp", action="store_true", help="DeepSpeed: do not use its C++ extensions")
    a.add_argument("--build-only", action="store_true", help="DeepSpeed: compile its C++ extensions and exit")
    return a.parse_args()


def take_cores(rank, world):
    mine = compare.cpus()
    if len(mine) >= world:
        os.sched_setaffinity(0, mine[len(mine) * rank // world : len(mine) * (rank + 1) // world])


class Ddp:
    def __init__(self, o, model, torch_gpt2):
        import torch
        self.torch = torch
        self.model = model
        ddp = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        self.ddp, self.step_model = ddp, torch.compile(ddp) if o.compile else ddp
        self.optimizer, self.words = torch_gpt2.make_optimizer(model)
        self.words = f"AdamW {self.words}, gloo{', autocast in bf16' if o.bf16 else ''}{', torch.compile' if o.compile else ''}"
        self.accumulation, self.bf16 = o.accumulation, o.bf16

    def micro(self, m, x, y):
        """Loss of micro-batch m after its backward."""
        if m == 0:
            self.optimizer.zero_grad(set_to_none=True)
        last = m == self.accumulation - 1
        with contextlib.nullcontext() if last else self.ddp.no_sync():
            with self.torch.autocast("cpu", dtype=self.torch.bfloat16, enabled=self.bf16):
                loss = self.step_model(x, y)
            (loss / self.accumulation).backward()
        if last:
            self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
        return loss


class DeepSpeed:
    def __init__(self, o, model, torch_gpt2):
        import deepspeed
        stage = int(o.peer[-1])
        settings = dict(lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
        if o.no_cpp:
            optimizer, words = torch_gpt2.make_optimizer(model)
            words = f"torch AdamW {words}"
        else:
            from deepspeed.ops.adam import DeepSpeedCPUAdam
            optimizer, words = DeepSpeedCPUAdam(model.parameters(), adamw_mode=True, **settings), "DeepSpeedCPUAdam"
        config = {
            "train_micro_batch_size_per_gpu": o.micro,
            "gradient_accumulation_steps": o.accumulation,
            "gradient_clipping": 1.0,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": {"stage": stage, "overlap_comm": True, "contiguous_gradients": True,
                                  "reduce_bucket_size": 6553600, "allgather_bucket_size": 6553600},
            "steps_per_print": 1 << 30,
        }
        if o.bf16:
            config["bf16"] = {"enabled": True}
        if stage == 3:
            for key in ("reduce_bucket_size", "allgather_bucket_size"):
                config["zero_optimization"].pop(key)  # its defaults for stage 3 go with its prefetch
        self.engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]
        backend = getattr(deepspeed.comm.comm, "cdb", None)
        shm = getattr(backend, "shm_comm_op", None)
        self.words = f"DeepSpeed {deepspeed.__version__}, {words}, {'shared-memory all-reduce and ' if shm else ''}gloo{', bf16' if o.bf16 else ''}"

    def micro(self, m, x, y):
        loss = self.engine(x, y)
        self.engine.backward(loss)
        self.engine.step()
        return loss


def main():
    o = options()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    take_cores(rank, world)
    os.environ.update(OMP_NUM_THREADS=str(o.threads), MKL_NUM_THREADS=str(o.threads), GLOO_SOCKET_IFNAME="lo",
                      LOCAL_RANK=str(rank), LOCAL_SIZE=str(world), LOCAL_WORLD_SIZE=str(world), DS_ACCELERATOR="cpu",
                      CUDA_VISIBLE_DEVICES="", MASTER_ADDR="127.0.0.1")
    out = os.dup(1)  # the result's line; what libraries print goes to stderr
    os.dup2(2, 1)
    import numpy as np
    import torch
    import torch.distributed as dist

    import torch_gpt2

    torch.set_num_threads(o.threads)
    torch.manual_seed(0)
    sizes = torch_gpt2.SIZES[o.model] + (4096 if o.model == "tiny" else 50257,)
    if o.build_only:
        import deepspeed  # noqa: F401
        from deepspeed.ops.op_builder import CPUAdamBuilder, ShareMemCommBuilder
        for builder in (CPUAdamBuilder, ShareMemCommBuilder):
            builder().load(verbose=False)
        return
    dist.init_process_group("gloo", init_method=f"file://{o.meet}", rank=rank, world_size=world)
    if o.peer != "ddp":
        import deepspeed
        if o.no_cpp:
            deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, dist_init_required=False)
    model = torch_gpt2.GPT2(*sizes[:3], n_ctx=sizes[3], vocab=sizes[4])
    side = (Ddp if o.peer == "ddp" else DeepSpeed)(o, model, torch_gpt2)

    ids = np.fromfile(o.data, dtype="<u2").astype(np.int64)
    n = o.micro * o.seq
    times, losses = [], []
    dist.barrier()
    for step in range(o.steps):
        begin, total = time.perf_counter(), 0.0
        for m in range(o.accumulation):
            at = (((step * world + rank) * o.accumulation + m) * n) % (len(ids) - n)
            x = torch.from_numpy(ids[at : at + n]).view(o.micro, o.seq)
            y = torch.from_numpy(ids[at + 1 : at + n + 1]).view(o.micro, o.seq)
            total += side.micro(m, x, y).item()
        losses.append(total / o.accumulation)
        times.append(time.perf_counter() - begin)
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    everyone = [None] * world
    dist.all_gather_object(everyone, {"times": times, "rss": rss, "loss": losses})
    if rank == 0:
        # a step ends when the last worker has ended it
        slowest = [max(e["times"][i] for e in everyone) for i in range(o.steps)]
        loss = [sum(e["loss"][i] for e in everyone) / world for i in range(o.steps)]
        os.write(out, (json.dumps({"torch": torch.__version__, "words": side.words, "threads": torch.get_num_threads(),
                                   "steps": slowest, "loss": loss, "peak_rss": [e["rss"] for e in everyone]}) + "\n").encode())
    dist.barrier()
    os._exit(0)  # gloo's threads are not waited for


if __name__ == "__main__":
    main()
