# shellcheck shell=bash disable=SC2034
# lib.sh - shared by the examples: where the program is, where files go, and the size of the model.
#
#   LOCKSTEP   the program                     [build/lockstep]
#   WORK       folder for the example's files  [build/examples/NAME]; its content is replaced
#   LARGE=1    a larger model and more steps: minutes instead of seconds
#   THREADS    threads of each worker            [1; LARGE: all cores, shared by the workers]
#   LS_DEVICE  cpu, cuda or auto               [cpu: the small model gains nothing from a GPU]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[1]}")" && pwd)
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
LOCKSTEP=${LOCKSTEP:-$root/build/lockstep}
WORK=${WORK:-$root/build/examples/$(basename "$here")}
export LS_DEVICE=${LS_DEVICE:-cpu}
[[ -x $LOCKSTEP ]] || { echo "$LOCKSTEP does not exist: run ./run build first, or set LOCKSTEP" >&2; exit 1; }
LOCKSTEP=$(realpath "$LOCKSTEP")
rm -rf "$WORK"
mkdir -p "$WORK"
cd "$WORK"

# Options of `lockstep train`. A global batch of 8 sequences is 8 micro-batches of 1 on one worker, 4 on each of two: the
# same work, and with it the same bits, on every layout.
if [[ ${LARGE:-0} == 1 ]]; then
    model=(--model tiny --num_layers 4 --num_heads 6 --embedding_size 192 --max_position_embeddings 128 --seq_length 128)
    sentences=60000 vocabulary=512 steps=300 lr=1e-3 threads=${THREADS:-0}
else
    model=(--model tiny --num_layers 2 --num_heads 4 --embedding_size 64 --max_position_embeddings 64 --seq_length 64)
    sentences=6000 vocabulary=512 steps=80 lr=5e-3 threads=${THREADS:-1}
fi
model+=(--dropout 0 --threads "$threads" --micro_batch_size_per_gpu 1 --global_batch_size 8)

# show COMMAND...: prints the command and runs it. Its output goes to log.txt and is printed only when it fails.
show() {
    printf '$ %s\n' "${*/#"$LOCKSTEP"/lockstep}"
    "$@" >>log.txt 2>&1 || { tail -n 20 log.txt; fail "the command failed (all output: $WORK/log.txt)"; }
}
heading() { printf '\n== %s\n' "$*"; }
fail() { echo "FAILED: $*" >&2; exit 1; }

# write_text FILE SENTENCES [SEED] [sea|land]: simple English with a fixed grammar, the same on every machine.
write_text() {
    awk -v n="$2" -v seed="${3:-1}" -v topic="${4:-land}" '
    function pick(list, words) { s = s * 16807 % 2147483647; return (split(list, words, ",") ? words[1 + s % length(words)] : "") }
    function thing() { return pick("the,one") " " pick("big,small,red,quiet,brave,,,") " " pick(things) }
    function person() { return pick("The,A") " " pick("tall,young,clever,,,") " " pick(people) }
    function sentence(k) {
        k = pick("1,2,3,4")
        if (k == 1) return person() " " pick("found,lost,carried,painted") " " thing() " " pick(places) "."
        if (k == 2) return person() " and " pick("the,a") " " pick(people) " looked for " thing() "."
        if (k == 3) return "When " pick("night came,it rained,the bell rang") ", " tolower(person()) " sold " thing() "."
        return person() " slept " pick(places) "."
    }
    BEGIN {
        s = 48271 * seed % 2147483647
        for (i = 0; i < 10; i++) pick("1,2")
        if (topic == "sea") {
            people = "sailor,fisher,captain,pilot"; things = "boat,net,sail,rope,fish"; places = "on the deck,by the harbour,under the mast"
        } else {
            people = "farmer,miller,child,queen,baker"; things = "lamp,letter,pear,drum,coat"; places = "on the hill,by the river,in the market"
        }
        for (i = 0; i < n; i++) {
            line = sentence(); gsub(/  +/, " ", line)
            printf "%s%s", line, pick("1,2,3,4") == 1 ? "\n" : " "
        }
        print ""
    }' >"$1"
}

# metric FOLDER STEP KEY: a number of metrics.jsonl; STEP may be `last`.
metric() {
    python3 - "$@" <<'P'
import json, sys
folder, step, key = sys.argv[1:]
rows = [json.loads(line) for line in open(f"{folder}/metrics.jsonl")]
print(rows[-1][key] if step == "last" else next(r for r in rows if r["step"] == int(step))[key])
P
}

# less A B: whether number A is below number B
less() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a + 0 < b + 0) }'; }

# same_weights A B: whether two checkpoints hold the same bytes of weights and optimizer state
same_weights() { cmp -s "$1/model.safetensors" "$2/model.safetensors" && cmp -s "$1/optimizer.safetensors" "$2/optimizer.safetensors"; }
