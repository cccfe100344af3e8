#!/usr/bin/env bash
# The loss scale against DeepSpeed's own classes (its source distribution, nothing of it installed) and torch's GradScaler, under random
# rows of overflows.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../support/torch.sh"
tool=${LS_BUILD:-$here/../../build}/oracle_loss_scale_tool
[ -x "$tool" ] || { echo "skipped: $tool is not built"; exit 77; }
exec "$python" "$here/loss_scale.py" "$tool"
