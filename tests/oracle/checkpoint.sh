#!/usr/bin/env bash
# Lockstep reads folders that transformers wrote, and transformers opens folders that lockstep wrote without conversion: both
# variants, single and sharded files, fp32, fp16 and bf16. Tensors are compared bit for bit.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../support/torch.sh"
lockstep=${LOCKSTEP:-$here/../../build/lockstep}
[ -x "$lockstep" ] || { echo "skipped: $lockstep is not built"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 "$python" "$here/checkpoint.py" "$lockstep" "$work"
