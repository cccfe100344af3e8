#!/usr/bin/env bash
# Trains the same work under several parallel strategies, compares them in a table and on a page, and checks that all of them
# computed the same weights. LAYOUTS, REPEAT and WORKERS change what is compared.
# shellcheck source=../lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
layouts=${LAYOUTS:-ddp,zero1,zero3,pp-1f1b}
workers=${WORKERS:-1,2}
repeat=${REPEAT:-2}
[[ ${LARGE:-0} == 1 ]] || steps=12

heading "1. Data"
write_text text.txt "$sentences"
show "$LOCKSTEP" prepare --input text.txt --out data --tokenizer train --vocab_size "$vocabulary"

heading "2. The runs, taken in turns"
show "$LOCKSTEP" bench strategies -n "$workers" --layouts "$layouts" --repeat "$repeat" --steps "$steps" --warmup 4 \
    --keep_checkpoints --out runs -- --data data "${model[@]}" --lr "$lr"

heading "3. Speed, memory and communication of each"
"$LOCKSTEP" bench strategies --warmup 4 runs 2>>log.txt
show "$LOCKSTEP" report runs --out page
echo "the page: $WORK/page/report.html"

heading "4. The weights of each"
find runs -name model.safetensors -exec sha256sum {} + | sort -k 2 | tee sums.txt
n=$(wc -l <sums.txt)
[[ $n -ge 2 ]] || fail "there is nothing to compare: $n checkpoints"
[[ $(cut -d ' ' -f 1 sums.txt | sort -u | wc -l) == 1 ]] || fail "the weights differ"
[[ -s page/report.html && -s runs/strategies_report.json ]] || fail "no report was written"
echo "$n runs, the same weights in all of them"
echo "ok"
