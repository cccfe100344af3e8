"""Loss scales of lockstep, DeepSpeed 0.18.3 and torch for the same overflows. Exit 77 if the source of DeepSpeed is not available.

DeepSpeed itself is not imported (it needs compilers and a GPU): its loss_scaler.py runs with replacements of the three names that it
imports, and of fused_optimizer.py (stage 0) only the method that updates the scale is used."""
import ast
import os
import random
import subprocess
import sys
import tarfile
import types
from pathlib import Path

import torch

VERSION = "0.18.3"
PLACE = "deepspeed/runtime/fp16/"


def source(name):
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "lockstep" / "deepspeed"
    archive = cache / f"deepspeed-{VERSION}.tar.gz"
    if not archive.exists():
        get = [sys.executable, "-m", "pip", "--timeout", "10", "--retries", "1", "download", "-q", "--no-deps", "--no-binary", ":all:",
               "-d", str(cache), f"deepspeed=={VERSION}"]
        try:
            subprocess.run(get, check=True, capture_output=True, timeout=240, env={**os.environ, "DS_BUILD_OPS": "0"})
        except (subprocess.SubprocessError, OSError) as why:
            print(f"skipped: no source of DeepSpeed {VERSION} ({why})")
            sys.exit(77)
    with tarfile.open(archive) as tar:
        return tar.extractfile(f"deepspeed-{VERSION}/{PLACE}{name}").read().decode()


def zero_class():
    """DynamicLossScaler, unchanged."""
    logger = types.SimpleNamespace(info=lambda *_: None)
    fake = {
        "deepspeed": types.ModuleType("deepspeed"),
        "deepspeed.runtime": types.ModuleType("deepspeed.runtime"),
        "deepspeed.runtime.config_utils": types.ModuleType("deepspeed.runtime.config_utils"),
        "deepspeed.utils": types.ModuleType("deepspeed.utils"),
    }
    fake["deepspeed"].comm = types.SimpleNamespace(get_rank=lambda: 0)
    fake["deepspeed.runtime.config_utils"].DeepSpeedConfigObject = object
    fake["deepspeed.utils"].logger = logger
    sys.modules.update(fake)
    names = {"__name__": "loss_scaler"}
    exec(compile(source("loss_scaler.py"), "loss_scaler.py", "exec"), names)
    return names["DynamicLossScaler"]


def stage0_update():
    """FP16_Optimizer._update_scale, unchanged."""
    tree = ast.parse(source("fused_optimizer.py"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "_update_scale":
            names = {"logger": types.SimpleNamespace(info=lambda *_: None)}
            exec(compile(ast.Module(body=[node], type_ignores=[]), "fused_optimizer.py", "exec"), names)
            return names["_update_scale"]
    raise SystemExit("fused_optimizer.py has no _update_scale")


def of_zero(cls, c, row):
    s = cls(init_scale=c["initial"], scale_window=c["window"], min_scale=c["min"], delayed_shift=c["hysteresis"],
            consecutive_hysteresis=c["consecutive"])
    for bit in row:
        try:
            s.update_scale(bit == "1")
        except Exception as end:
            assert "already at minimum" in str(end), end
            yield "abort"
            return
        yield f"{s.cur_scale:.17g}:{s.cur_hysteresis}"


def of_stage0(update, c, row):
    s = types.SimpleNamespace(dynamic_loss_scale=True, cur_scale=c["initial"], scale_factor=2.0, min_loss_scale=c["min"], cur_iter=0,
                              last_overflow_iter=-1, scale_window=c["window"], verbose=False)
    for bit in row:
        update(s, bit == "1")
        yield f"{s.cur_scale:.17g}"


def of_torch(c, row):
    """The operation that GradScaler.update() calls, with its defaults except for the window."""
    scale, tracker = torch.full((1,), c["initial"]), torch.zeros(1, dtype=torch.int32)
    for bit in row:
        torch._amp_update_scale_(scale, tracker, torch.tensor([float(bit)]), 2.0, 0.5, c["window"])
        yield f"{scale.item():.17g}"


def cases():
    rng = random.Random(6)
    for k in range(400):
        rule = ("zero", "stage0", "amp")[k % 3]
        c = dict(rule=rule, initial=2.0 ** rng.randint(0, 20), min=2.0 ** rng.randint(-2, 3), window=rng.randint(1, 9),
                 hysteresis=rng.randint(1, 4), consecutive=rng.random() < 0.5)
        p = rng.choice([0.0, 0.05, 0.2, 0.5, 0.9])
        yield c, "".join("1" if rng.random() < p else "0" for _ in range(rng.randint(1, 120)))
    for rule, consecutive in (("zero", False), ("zero", True), ("stage0", False), ("amp", False)):  # the rows of tests/config/test_loss_scale.c
        yield dict(rule=rule, initial=256.0, min=1.0, window=3, hysteresis=2, consecutive=consecutive), "1101000010000000"
    yield dict(rule="zero", initial=65536.0, min=1.0, window=1000, hysteresis=2, consecutive=False), "11" + "0" * 2500
    yield dict(rule="amp", initial=65536.0, min=1.0, window=2000, hysteresis=2, consecutive=False), "0" * 4500


def main():
    cls, update = zero_class(), stage0_update()
    todo = list(cases())
    text = "".join(f"{c['rule']} {c['initial']!r} {c['min']!r} {c['window']} {c['hysteresis']} {int(c['consecutive'])} {row}\n"
                   for c, row in todo)
    lines = subprocess.run([sys.argv[1]], input=text, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    assert len(lines) == len(todo), (len(lines), len(todo))
    n = aborts = 0
    for (c, row), line in zip(todo, lines):
        ours = line.split()
        if c["rule"] == "zero":
            theirs = list(of_zero(cls, c, row))
            aborts += theirs[-1] == "abort"
        else:
            ours = [x.split(":")[0] for x in ours]
            theirs = list(of_stage0(update, c, row) if c["rule"] == "stage0" else of_torch(c, row))
        assert ours == theirs, (c, row, next((i, a, b) for i, (a, b) in enumerate(zip(ours + [""], theirs + [""])) if a != b))
        n += len(theirs)
    assert aborts > 5, aborts
    print(f"{len(todo)} runs, {n} boundaries, {aborts} of them ended at the smallest scale: the same scales and hysteresis")


main()
