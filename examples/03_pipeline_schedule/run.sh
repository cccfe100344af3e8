#!/usr/bin/env bash
# A pipeline schedule written by hand: checked, drawn, simulated beside built-in ones, and used for training.
# SCHEDULE=FILE takes another file (2 stages, 8 micro-batches).
# shellcheck source=../lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
cp "${SCHEDULE:-$here/early_gradient.txt}" mine.txt
[[ ${LARGE:-0} == 1 ]] || steps=20

# bubble NAME: the idle share of all stages that the simulator predicts
bubble() {
    "$LOCKSTEP" plan --schedule "$1" --pp 2 --micro 8 --json 2>>log.txt |
        python3 -c 'import json, sys; print("%.4f" % json.load(sys.stdin)["bubble"])'
}

heading "1. The schedule"
cat mine.txt

heading "2. Checked and simulated, nothing runs yet"
"$LOCKSTEP" plan --schedule mine.txt --draw mine.svg
mine=$(bubble mine.txt) one=$(bubble 1f1b)
echo "bubble: gpipe $(bubble gpipe), 1f1b $one, mine $mine, zb $(bubble zb)"

heading "3. A wrong schedule is refused, with its rank and action"
sed 's/^F0 F1 B0 /F0 B0 F1 /; s/^F0 I0 W0 F1 /F0 F1 I0 W0 /' mine.txt >wrong.txt
if "$LOCKSTEP" plan --schedule wrong.txt >wrong.log 2>&1; then [[ ${SCHEDULE:-} ]] || fail "it was accepted"; fi
head -n 1 wrong.log

heading "4. Training with it on two workers, and on one worker without a pipeline"
write_text text.txt "$sentences"
show "$LOCKSTEP" prepare --input text.txt --out data --tokenizer train --vocab_size "$vocabulary"
show "$LOCKSTEP" train --data data "${model[@]}" --lr "$lr" --max_steps "$steps" --checkpoint_path mine -n 2 --pp 2 --schedule mine.txt
show "$LOCKSTEP" train --data data "${model[@]}" --lr "$lr" --max_steps "$steps" --checkpoint_path single

[[ -s mine.svg ]] || fail "the schedule was not drawn"
[[ ${SCHEDULE:-} ]] || less "$mine" "$one" || fail "its bubble is not smaller than that of 1f1b"
same_weights mine/epoch-1 single/epoch-1 || fail "the pipeline and one worker ended with different weights"
echo "the same weights after $steps steps, bit for bit"
echo "ok"
