# shellcheck shell=bash
# torch.sh - for scripts that compare with PyTorch: sets $python, or skips (77) with the reason.
# One thread: tests run in parallel. Lockstep does not read this variable.
export OMP_NUM_THREADS=1
python=${LS_ORACLE:-${XDG_CACHE_HOME:-$HOME/.cache}/lockstep/oracle}/bin/python
if [ ! -x "$python" ]; then
    echo "skipped: no $python (./run oracle makes it: torch, transformers, safetensors, tokenizers, numpy)"
    exit 77
fi
# Importing PyTorch and transformers takes seconds: a successful check stays valid until a package is installed. It also leaves their
# compiled bytecode, even where PYTHONDONTWRITEBYTECODE is set: without it, every import takes three times as long.
ready=${python%/bin/python}/ready
packages=$(echo "${python%/bin/python}"/lib/python3*/site-packages)
if [ ! "$ready" -nt "$packages" ]; then
    # An installed PyTorch may never return from its first matrix product (seen in a minimal chroot on arm64 with any number of threads;
    # the cause is not known).
    rc=0
    why=$(env -u PYTHONDONTWRITEBYTECODE timeout 300 "$python" -c '
import torch, safetensors.torch, tokenizers, numpy
from transformers import GPT2LMHeadModel
(torch.ones(300, 300) @ torch.ones(300, 300)).sum()' 2>&1) || rc=$?
    case $rc in
    0) touch "$ready" 2>/dev/null || true ;;
    124) echo "skipped: this PyTorch cannot multiply two matrices within five minutes"; exit 77 ;;
    *) echo "skipped: $python lacks a package: $(printf '%s' "$why" | tail -n 1)"; exit 77 ;;
    esac
fi
