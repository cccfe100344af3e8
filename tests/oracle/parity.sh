#!/usr/bin/env bash
# Compares loss, gradients, AdamW, eval and initial losses with PyTorch and transformers. LS_TEST_ALL=1 adds GPT-2 124M.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../support/torch.sh"
build=${LS_BUILD:-$here/../../build}
full=()
[ -z "${LS_TEST_ALL:-}" ] || full=(--full)
export HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error
exec "$python" "$here/parity.py" --lockstep "${LOCKSTEP:-$build/lockstep}" --tool "$build/oracle_parity_tool" "${full[@]}" "$@"
