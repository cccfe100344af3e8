#!/usr/bin/env bash
# ls-test: serial
# Folders written by transformers are read by lockstep, and folders written by lockstep are opened by transformers as they
# are: both variants, single and sharded, float, half and bfloat16, tensors compared bit for bit.
set -euo pipefail
export OMP_NUM_THREADS=1 # PyTorch's threaded BLAS can stand still for ever where threads outnumber cores; ours does not read this
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${LS_ORACLE:-${XDG_CACHE_HOME:-$HOME/.cache}/lockstep/oracle}/bin/python
lockstep=${LOCKSTEP:-$here/../../build/lockstep}
[ -x "$python" ] || { echo "skipped: no oracle environment at $python (torch, transformers)"; exit 77; }
[ -x "$lockstep" ] || { echo "skipped: $lockstep is not built"; exit 77; }
# A PyTorch build can be installed and still hang in its first matrix product (its BLAS does on some systems).
if ! timeout 60 "$python" -c 'import torch; (torch.ones(300, 300) @ torch.ones(300, 300)).sum()' >/dev/null 2>&1; then
    echo "skipped: this PyTorch cannot multiply two matrices within a minute"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 "$python" "$here/checkpoint.py" "$lockstep" "$work"
