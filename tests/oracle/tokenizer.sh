#!/usr/bin/env bash
# The tokenizer against tiktoken (100,000 random Unicode strings, id by id) and against the tokenizers library (our
# tokenizer.json, and the merges that both trainers learn). Needs the oracle's Python and, for the first, GPT-2's files.
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
python=${LS_ORACLE:-${XDG_CACHE_HOME:-$HOME/.cache}/lockstep/oracle}/bin/python
[ -x "$python" ] || skip "no Python with tiktoken and tokenizers at $python"
"$python" -c 'import tiktoken, tokenizers' 2>/dev/null || skip "$python has no tiktoken or no tokenizers"
[ -x "$LOCKSTEP" ] || skip "no program at $LOCKSTEP"
data=$LS_SOURCE/../shared/data
[ -e "$data/gpt2/vocab.bpe" ] || skip "no shared/data/gpt2 beside the repository"
"$python" "$(dirname "${BASH_SOURCE[0]}")/tokenizer.py" "$LOCKSTEP" "$data" "$SCRATCH" "${LS_ORACLE_STRINGS:-100000}"
