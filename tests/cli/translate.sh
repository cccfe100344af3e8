#!/usr/bin/env bash
# The translation task: scores of files, and what is refused.
. "$(dirname "$0")/../support/lib.sh"
cd "$SCRATCH" || exit 1

# ---- eval --task bleu ----
printf 'The cat sat on the mat.\nEin Haus steht dort\nкошка сидит на коврике\n' >hyp.txt
printf 'The cat is on the mat.\r\nEin altes Haus steht dort drüben\r\nкошка сидит на стуле' >ref.txt
expect 0 '^bleu 39.8062$' "$LOCKSTEP" eval --task bleu --hyp hyp.txt --ref ref.txt
expect 0 '^chrf 59.3632$' "$LOCKSTEP" eval --task bleu --hyp hyp.txt --ref ref.txt
gzip -k ref.txt
expect 0 '"bleu_signature": "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:' \
  "$LOCKSTEP" eval --task bleu --hyp - --ref ref.txt.gz --json <hyp.txt
expect 2 'needs --hyp FILE and --ref FILE' "$LOCKSTEP" eval --task bleu --hyp hyp.txt
head -n 2 ref.txt >short.txt
expect 3 'short.txt ends after line 2, but hyp.txt goes on' "$LOCKSTEP" eval --task bleu --hyp hyp.txt --ref short.txt
printf 'ok\n\xff\n' >bytes.txt
expect 3 'bytes.txt: line 2: byte 1 (0xff) is not UTF-8' "$LOCKSTEP" eval --task bleu --hyp bytes.txt --ref bytes.txt
: >none.txt
expect 3 'have no lines' "$LOCKSTEP" eval --task bleu --hyp none.txt --ref none.txt
expect 3 'missing.txt' "$LOCKSTEP" eval --task bleu --hyp hyp.txt --ref missing.txt

done_tests
