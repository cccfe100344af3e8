#!/usr/bin/env bash
# ls-test: serial
# Greedy ids against transformers. LS_TEST_ALL=1 adds GPT-2 124M with the real vocabulary.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../torch.sh"
build=${LS_BUILD:-$here/../../build}
full=()
[ -z "${LS_TEST_ALL:-}" ] || full=(--full)
export HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error
exec "$python" "$here/generate.py" --lockstep "${LOCKSTEP:-$build/lockstep}" --vocab "$here/../../../shared/data/gpt2" "${full[@]}" "$@"
