#!/usr/bin/env bash
# TCP against Open MPI between two hosts: throughput of ddp and zero3 on 2 hosts x 2 workers, the same program and the same link.
#
# The hosts are network namespaces joined by a link of a set rate (tests/support/hosts, root). Rounds alternate (tcp mpi, mpi tcp, ...), so that a
# slow minute of the machine affects both. The weights of both are compared. Then the same for collectives of 16 MiB alone (bench comm).
#
#   perf/tcp_vs_mpi.sh [ROUNDS [STEPS]]        LINK=1gbit  LAYERS=6  WIDTH=384  SEQ=128  BATCH=1 (sequences per worker and step)
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
lockstep=${LOCKSTEP:-$here/build/lockstep}
rounds=${1:-5} steps=${2:-10} link=${LINK:-1gbit} layers=${LAYERS:-6} width=${WIDTH:-384} seq=${SEQ:-128} batch=${BATCH:-1}
((rounds >= 1 && steps >= 3)) || { echo "tcp_vs_mpi.sh: needs at least 1 round and 3 steps (the first two are not measured)" >&2; exit 2; }
[[ $EUID -eq 0 ]] && command -v mpirun >/dev/null || { echo "SKIPPED: needs root (network namespaces) and mpirun"; exit 0; }
work=$(mktemp -d)
tool=("$here/tests/support/hosts" "$work/net")
trap '"${tool[@]}" down >/dev/null 2>&1; rm -rf "$work"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
"${tool[@]}" up 2 --rate "$link" --ttl 3000 >/dev/null

"$here/perf/small_model.py" "$work" "$layers" "$width" "$seq"

on_hosts() { # TRANSPORT COMMAND...: lockstep on 2 hosts x 2 workers
    local t=$1
    shift
    if [ "$t" = mpi ]; then timeout -k 5 300 "${tool[@]}" mpirun -np 4 "$lockstep" "$@"
    else timeout -k 5 300 "$lockstep" launch --hosts n1,n2 -n 4 --rsh "${tool[*]} rsh" --no_prefix -- "$@"; fi
}

one() { # TRANSPORT STRATEGY ROUND
    on_hosts "$1" train --device cpu --data "$work/d" --model "$work/model.json" --seq_length "$seq" --micro_batch_size_per_gpu "$batch" \
        --max_steps "$steps" --max_val_steps 0 --lr 1e-4 --strategy "$2" --checkpoint_path "$work/$1" >"$work/log" 2>&1 ||
        { tail -5 "$work/log" >&2; exit 1; }
    mkdir -p "$work/got/$1 $2"
    cp "$work/$1/metrics.jsonl" "$work/got/$1 $2/$3.jsonl"
}

for ((k = 0; k < rounds; k++)); do
    for s in ddp zero3; do
        order="tcp mpi"; [ $((k % 2)) = 0 ] || order="mpi tcp"
        for t in $order; do rm -rf "${work:?}/$t"; one $t $s $k; done
        cmp "$work/tcp/epoch-1/model.safetensors" "$work/mpi/epoch-1/model.safetensors"
    done
    for t in $order; do
        on_hosts $t bench comm --min 16M --max 16M --rounds 5 --collectives all_reduce,reduce_scatter,all_gather,broadcast >>"$work/got/$t.txt" 2>&1
    done
done

python3 - "$work/got" "$(mpirun --version | head -1)" <<'PY'
import glob, json, statistics as st, sys
def take(name):
    """Per round: median step time and exposed communication, without the first two steps (memory is touched for the first time)."""
    out = []
    for k in range(len(glob.glob(f"{sys.argv[1]}/{name}/*.jsonl"))):
        rows = [json.loads(l) for l in open(f"{sys.argv[1]}/{name}/{k}.jsonl")][2:]
        out.append((st.median(r["step_time_sec"] for r in rows), st.median(r["comm_exposed_sec"] for r in rows)))
    return out
print(f"{sys.argv[2]}; weights of both are equal, bit for bit, in every round\n")
print("| strategy | transport | step, s (median of rounds; least ... most) | exposed, s | throughput, tcp / mpi by rounds (least ... most) |")
print("| --- | --- | --- | --- | --- |")
for s in ("ddp", "zero3"):
    a, b = take(f"tcp {s}"), take(f"mpi {s}")
    ratio = sorted(y[0] / x[0] for x, y in zip(a, b))
    for name, v in (("tcp", a), ("mpi", b)):
        t = sorted(x[0] for x in v)
        extra = f"{st.median(ratio):.3f} ({ratio[0]:.3f} ... {ratio[-1]:.3f}), {len(ratio)} rounds" if name == "tcp" else ""
        print(f"| {s} | {name} | {st.median(t):.3f} ({t[0]:.3f} ... {t[-1]:.3f}) | {st.median(x[1] for x in v):.3f} | {extra} |")
print("\n| collective, 16 MiB | tcp, ms (median of rounds; least ... most) | mpi, ms |")
print("| --- | --- | --- |")
def times(t):
    out = {}
    for line in open(f"{sys.argv[1]}/{t}.txt"):
        w = line.split()
        if len(w) > 3 and w[1] == "16777216": out.setdefault(w[0], []).append(float(w[2]) / 1000)
    return out
a, b = times("tcp"), times("mpi")
for kind in a:
    cell = [f"{st.median(v[kind]):.1f} ({min(v[kind]):.1f} ... {max(v[kind]):.1f})" for v in (a, b)]
    print(f"| {kind} | {cell[0]} | {cell[1]} |")
PY
