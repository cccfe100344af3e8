#!/usr/bin/env bash
# Compares greedy generation with transformers, id by id. LS_TEST_ALL=1 adds GPT-2 124M with the real vocabulary.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../support/torch.sh"
build=${LS_BUILD:-$here/../../build}
full=()
export HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error
work=$(mktemp -d "${TMPDIR:-/tmp}/lockstep-test.XXXXXX")
trap 'rm -rf "$work"' EXIT
if [ -n "${LS_TEST_ALL:-}" ]; then
    if why=$("$python" "$here/gpt2_vocab.py" "$work/gpt2" 2>&1); then full=(--full --vocab "$work/gpt2"); else echo "without GPT-2 124M: $why"; fi
fi
"$python" "$here/generate.py" --lockstep "${LOCKSTEP:-$build/lockstep}" "${full[@]}" "$@"
