#!/usr/bin/env bash
# Compares the loss scale with the classes of DeepSpeed (from its source distribution, not installed) and with torch's GradScaler, for
# random rows of overflows.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../support/torch.sh"
tool=${LS_BUILD:-$here/../../build}/oracle_loss_scale_tool
[ -x "$tool" ] || { echo "skipped: $tool is not built"; exit 77; }
exec "$python" "$here/loss_scale.py" "$tool"
