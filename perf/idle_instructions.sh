#!/usr/bin/env bash
# idle_instructions.sh - what an idle supervisor (--max_restarts) and idle audits (--audit 100000) add to a step, in instructions, counted by valgrind.
# ls-bench: by name; needs valgrind, takes about 12 minutes.
#
#   perf/idle_instructions.sh [LOCKSTEP]
#
# A count does not depend on what else the machine does, where perf/idle_cost.py needs quiet cores. One worker with one thread (threads that wait for each other
# would be counted while they spin) trains a model of two layers of 64 for 10 and for 70 steps; the difference, over 60, is a step. The process of the supervisor
# works by time, not by step: under valgrind a step takes about a hundred times as long, so its share here is far above its share in a run.
set -euo pipefail
lockstep=$(realpath "${1:-${LOCKSTEP:-$(dirname "${BASH_SOURCE[0]}")/../build/lockstep}}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -c 'import random, struct, sys; r = random.Random(1); sys.stdout.buffer.write(struct.pack("<60000H", *(r.randrange(500) for _ in range(60000))))' >"$work/ids.bin"

count() { # NAME STEPS OPTION... -> instructions of all processes but the supervisor's, and those of the supervisor's
    local name=$1 steps=$2
    shift 2
    OMP_NUM_THREADS=1 LS_DEVICE=cpu valgrind --tool=callgrind --trace-children=yes --callgrind-out-file="$work/$name.%p" "$lockstep" train --train_data_path "$work/ids.bin" \
        --model gpt2 --vocab_size 512 --num_layers 2 --num_heads 4 --embedding_size 64 --seq_length 64 --micro_batch_size_per_gpu 1 --global_batch_size 1 \
        --max_steps "$steps" --dropout 0 --threads 1 --save_every 0 --checkpoint_path "$work/run-$name" "$@" >"$work/$name.log" 2>&1 ||
        { tail -n 5 "$work/$name.log" >&2; exit 1; }
    rm -rf "$work/run-$name"
    grep -ah '^totals:' "$work/$name".* | awk '{print $2}' | sort -n | tr '\n' ' '
}

declare -A total
for name in plain supervisor audit_idle; do
    case $name in
    plain) options=() ;;
    supervisor) options=(--max_restarts 3) ;;
    audit_idle) options=(--audit 100000) ;;
    esac
    for steps in 10 70; do total[$name$steps]=$(count "$name$steps" "$steps" "${options[@]}"); done
done
again=$(count again70 70) # what a repetition changes
python3 - "$again" "${total[plain10]}" "${total[plain70]}" "${total[supervisor10]}" "${total[supervisor70]}" "${total[audit_idle10]}" "${total[audit_idle70]}" <<'P'
import sys
again, p10, p70, s10, s70, a10, a70 = ([int(x) for x in a.split()] for a in sys.argv[1:])
step = (p70[-1] - p10[-1]) / 60
noise = abs(again[-1] - p70[-1]) / 60
print(f"a step: {step:,.0f} instructions; a repetition of one run differs by {noise:,.0f} of them ({100 * noise / step:.2f} %)")
for name, a, b in (("supervisor", s10, s70), ("audit_idle", a10, a70)):
    print(f"{name}: the worker {100 * ((b[-1] - a[-1]) / 60 / step - 1):+.2f} % of a step")
print(f"supervisor: its own process {100 * (s70[0] - s10[0]) / 60 / step:.2f} % of a step")
P
