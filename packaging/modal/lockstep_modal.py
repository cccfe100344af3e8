"""Lockstep on Modal (modal.com): the experiment of the translation study (docs/REFERENCES.md), and any other command, on rented GPUs.

    pip install modal && modal setup
    modal run packaging/modal/lockstep_modal.py::prepare --source pairs.tsv
    modal run packaging/modal/lockstep_modal.py::r3                              # data parallel, and pipeline versus model parallel
    modal run packaging/modal/lockstep_modal.py::main --command "doctor --device cuda"
    modal volume get lockstep r3 .                                               # charts and r3_report.json

The image is built on Modal from this checkout. Data and runs are in the volume `lockstep`, which a run that Modal preempts continues from.
LOCKSTEP_MODAL_GPU selects the GPUs (default A100-80GB:2; T4:4, L4, A10G:2, H100, B200 …). The plugin has code for all of them; LOCKSTEP_MODAL_ARCH
selects one architecture (75, 80, 86, 89, 90a, 100 …), which builds faster (default all).
"""

import os
import shlex
import subprocess
from pathlib import Path

import modal

GPU = os.environ.get("LOCKSTEP_MODAL_GPU", "A100-80GB:2")
ARCH = os.environ.get("LOCKSTEP_MODAL_ARCH", "all")
WORK = "/mnt/lockstep"
ROOT = Path(__file__).resolve().parents[2] if modal.is_local() else Path("/src")

image = (
    modal.Image.from_registry("nvidia/cuda:13.0.1-cudnn-devel-ubuntu24.04", add_python="3.12")
    .env({"LS_CUDA_ARCH": ARCH, "DEBFULLNAME": "Lockstep image", "DEBEMAIL": "root@image.invalid"})
    .add_local_dir(ROOT, "/src", copy=True, ignore=["build", "build-*", ".git", "runs", "data", "checkpoint"])
    .run_commands(
        "cd /src && ./run package && test -e build/lockstep_cuda.so",
        "apt-get install -y --no-install-recommends /src/build/package/lockstep_*.deb",
    )
    .entrypoint([])
)
app = modal.App("lockstep", image=image)
volume = modal.Volume.from_name("lockstep", create_if_missing=True)


def lockstep(*words):
    """Runs the program in the volume's folder; its output is the function's. The volume is saved also after a failure."""
    print("+ lockstep", shlex.join(words), flush=True)
    code = subprocess.run(["lockstep", *words], cwd=WORK, check=False).returncode
    volume.commit()
    if code:
        raise RuntimeError(f"lockstep {words[0]}: exit code {code}")


@app.function(volumes={WORK: volume}, cpu=4, timeout=3600)
def prepare_pairs(text: bytes, name: str, vocab_size: int):
    Path(WORK, name).write_bytes(text)
    lockstep("prepare", "--task", "translate", "--input", name, "--out", "pairs", "--vocab-size", str(vocab_size))


@app.function(gpu=GPU, volumes={WORK: volume}, timeout=24 * 3600, retries=2)
def r3_bench(epochs: int):
    lockstep("bench", "r3", "--n_epochs", str(epochs), "--out", "r3", "--resume", "--", "--preset", "r3", "--dataset", "pairs")


@app.function(gpu=GPU, volumes={WORK: volume}, timeout=24 * 3600)
def run_command(words: list[str]):
    lockstep(*words)


@app.local_entrypoint()
def main(command: str = "doctor --device cuda"):
    run_command.remote(shlex.split(command))


@app.local_entrypoint()
def prepare(source: str, vocab_size: int = 10000):
    path = Path(source)
    prepare_pairs.remote(path.read_bytes(), path.name, vocab_size)


@app.local_entrypoint()
def r3(epochs: int = 10):
    r3_bench.remote(epochs)
