#!/usr/bin/env bash
# ls-test: serial
# Loss, gradients, AdamW, eval and initial losses against PyTorch and transformers. LS_TEST_ALL=1 adds GPT-2 124M.
set -eu
export OMP_NUM_THREADS=1 # PyTorch's threaded BLAS can stand still for ever where threads outnumber cores; ours does not read this
here=$(cd "$(dirname "$0")" && pwd)
python=${LS_ORACLE:-${XDG_CACHE_HOME:-$HOME/.cache}/lockstep/oracle}/bin/python
build=${LS_BUILD:-$here/../../build}
if [ ! -x "$python" ]; then
    echo "skipped: no $python (a virtual environment with torch, transformers, safetensors, tokenizers, numpy)"
    exit 77
fi
if ! why=$("$python" -c 'import torch, transformers, safetensors, numpy' 2>&1); then
    echo "skipped: $python lacks a package: $(printf '%s' "$why" | tail -n 1)"
    exit 77
fi
# A PyTorch build can be installed and still hang in its first matrix product (its BLAS does on some systems).
if ! timeout 60 "$python" -c 'import torch; (torch.ones(300, 300) @ torch.ones(300, 300)).sum()' >/dev/null 2>&1; then
    echo "skipped: this PyTorch cannot multiply two matrices within a minute"
    exit 77
fi
full=()
[ -z "${LS_TEST_ALL:-}" ] || full=(--full)
export HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error
exec "$python" "$here/parity.py" --lockstep "${LOCKSTEP:-$build/lockstep}" --tool "$build/oracle_parity_tool" "${full[@]}" "$@"
