# shellcheck shell=bash
# torch.sh - for scripts that compare with PyTorch: sets $python, or skips (77) with the reason.
# One thread: tests run beside each other, and our own threads do not come from this variable.
export OMP_NUM_THREADS=1
python=${LS_ORACLE:-${XDG_CACHE_HOME:-$HOME/.cache}/lockstep/oracle}/bin/python
if [ ! -x "$python" ]; then
    echo "skipped: no $python (./run oracle makes it: torch, transformers, safetensors, tokenizers, numpy)"
    exit 77
fi
if ! why=$("$python" -c 'import torch, transformers, safetensors, tokenizers, numpy' 2>&1); then
    echo "skipped: $python lacks a package: $(printf '%s' "$why" | tail -n 1)"
    exit 77
fi
# A build of PyTorch can be installed and yet never return from its first matrix product (seen in a bare chroot on arm64, with any
# number of threads; why is not known).
if ! timeout 60 "$python" -c 'import torch; (torch.ones(300, 300) @ torch.ones(300, 300)).sum()' >/dev/null 2>&1; then
    echo "skipped: this PyTorch cannot multiply two matrices within a minute"
    exit 77
fi
