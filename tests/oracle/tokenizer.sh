#!/usr/bin/env bash
# Compares the tokenizer with tiktoken (6,000 random Unicode strings, LS_TEST_ALL=1: 100,000; id by id) and with the tokenizers library (our
# tokenizer.json, and the merges that both trainers learn). Needs the Python of `./run oracle` and the files of GPT-2 (gpt2_vocab.py
# finds them).
. "$(dirname "${BASH_SOURCE[0]}")/../support/lib.sh"
python=${LS_ORACLE:-${XDG_CACHE_HOME:-$HOME/.cache}/lockstep/oracle}/bin/python
[ -x "$python" ] || skip "no Python with tiktoken and tokenizers at $python"
"$python" -c 'import tiktoken, tokenizers' 2>/dev/null || skip "$python has no tiktoken or no tokenizers"
[ -x "$LOCKSTEP" ] || skip "no program at $LOCKSTEP"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
why=$("$python" "$here/gpt2_vocab.py" "$SCRATCH/gpt2" 2>&1) || skip "$why"

# the files of GPT-2 by download (here from a file URL), then from the cache; a cached file that was changed is refused
cd "$SCRATCH" || exit 1
printf 'Hi Shakespeare!' >one.txt
export LOCKSTEP_CACHE=$SCRATCH/cache
g() { LOCKSTEP_VOCAB_URL=$1 "$LOCKSTEP" prepare --quiet --input one.txt --val_fraction 0 --out small; }
g "file://$SCRATCH/gpt2" >/dev/null 2>err || bad "download: $(cat err)"
same gpt2/vocab.bpe cache/gpt2/vocab.bpe
same gpt2/encoder.json cache/gpt2/encoder.json
ids=$(od -An -v -tu2 small/train.bin | xargs)
[ "$ids" = "17250 22197 0 50256" ] || bad "wrong ids with the vocabulary of GPT-2: $ids"
g "file://$SCRATCH/nothing" >/dev/null 2>err || bad "the cache was not used: $(cat err)"
printf x >>cache/gpt2/vocab.bpe
expect 3 "expected 1ce1664773c50f3e.*vocab.bpe of GPT-2" "$LOCKSTEP" prepare --quiet --input one.txt --out small
unset LOCKSTEP_CACHE

strings=6000; [ "${LS_TEST_ALL:-0}" = 1 ] && strings=100000
TIKTOKEN_CACHE_DIR=$SCRATCH/tiktoken "$python" "$here/tokenizer.py" "$LOCKSTEP" gpt2 "$LS_SOURCE/tests/data/bpe" "$SCRATCH" \
  "${LS_ORACLE_STRINGS:-$strings}" || bad "tokenizer.py found differences"
done_tests
