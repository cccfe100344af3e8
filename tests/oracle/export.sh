#!/usr/bin/env bash
# transformers loads exports (fp32, sharded, bf16, fp16, through llm.c's file) and continues 50 prompts like lockstep, id by id; the gguf
# package reads GGUF exports, every tensor equal; a folder of transformers is fine-tuned and given back. LS_TEST_ALL=1 adds a model of 124M
# parameters.
# ls-test: long
. "$(dirname "$0")/../support/lib.sh"
. "$LS_SOURCE/tests/support/torch.sh"
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TRANSFORMERS_VERBOSITY=error
full=()
if [ -n "${LS_TEST_ALL:-}" ]; then
    if why=$("$python" "$LS_SOURCE/tests/oracle/gpt2_vocab.py" "$SCRATCH/gpt2" 2>&1); then full=("$SCRATCH/gpt2"); else echo "without GPT-2 124M: $why"; fi
fi
"$python" "$LS_SOURCE/tests/oracle/export.py" "$LOCKSTEP" "$SCRATCH" "${full[@]}" || bad "an export differs"
done_tests
