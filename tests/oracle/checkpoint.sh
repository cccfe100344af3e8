#!/usr/bin/env bash
# Folders written by transformers are read by lockstep, and folders written by lockstep are opened by transformers as they
# are: both variants, single and sharded, float, half and bfloat16, tensors compared bit for bit.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../support/torch.sh"
lockstep=${LOCKSTEP:-$here/../../build/lockstep}
[ -x "$lockstep" ] || { echo "skipped: $lockstep is not built"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 "$python" "$here/checkpoint.py" "$lockstep" "$work"
