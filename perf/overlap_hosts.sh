#!/usr/bin/env bash
# Overlap of communication with backward: step time and exposed communication of dp and of ddp with several bucket sizes, 2 hosts x 2 workers.
#
# The hosts are network namespaces joined by a link of a set rate (tests/support/hosts, root); HOSTS_MPIRUN names another command
# that starts MPI ranks on two hosts. Rounds alternate, so that a slow minute of the machine affects all settings.
#
#   perf/overlap_hosts.sh [ROUNDS [STEPS]]        LINK=1gbit  LAYERS=6  WIDTH=384  SEQ=256  BATCH=2 (sequences per worker and step)
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
lockstep=${LOCKSTEP:-$here/build/lockstep}
rounds=${1:-3} steps=${2:-8} link=${LINK:-1gbit} layers=${LAYERS:-6} width=${WIDTH:-384} seq=${SEQ:-256} batch=${BATCH:-2}
work=$(mktemp -d)
tool=("$here/tests/support/hosts" "$work/net")
trap 'rm -rf "$work"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
if [[ ${HOSTS_MPIRUN:-} ]]; then
    read -ra start <<<"$HOSTS_MPIRUN"
elif [[ $EUID -eq 0 ]] && command -v mpirun >/dev/null; then
    trap '"${tool[@]}" down >/dev/null 2>&1; rm -rf "$work"' EXIT
    "${tool[@]}" up 2 --rate "$link" --ttl 3000 >/dev/null
    start=("${tool[@]}" mpirun)
else
    echo "SKIPPED: needs mpirun and two hosts (root, or HOSTS_MPIRUN)"
    exit 0
fi

"$here/perf/small_model.py" "$work" "$layers" "$width" "$seq"

one() { # NAME OPTIONS...
    local name=$1
    shift
    timeout -k 5 600 "${start[@]}" -np 4 "$lockstep" train --device cpu --data "$work/d" --model "$work/model.json" --seq_length "$seq" \
        --micro_batch_size_per_gpu "$batch" --max_steps "$steps" --max_val_steps 0 --lr 1e-4 --checkpoint_path "$work/run" "$@" \
        >"$work/log" 2>&1 || { tail -5 "$work/log" >&2; exit 1; }
    mkdir -p "$work/got/$name"
    cp "$work/run/metrics.jsonl" "$work/got/$name/$(ls "$work/got/$name" | wc -l).jsonl"
    cp "$work/run/training_metrics.json" "$work/got/$name.json"
    rm -rf "$work/run"
}

for ((k = 0; k < rounds; k++)); do
    one dp --strategy dp
    for b in 262144 1048576 2097152 6553600 100000000; do one "ddp $b" --strategy ddp --bucket $b; done
done

python3 - "$work/got" <<'PY'
import glob, json, statistics as st, sys
def take(name):
    t, c = [], []
    for f in glob.glob(f"{glob.escape(sys.argv[1])}/{name}/*.jsonl"):
        rows = [json.loads(l) for l in open(f)][2:]  # the first steps touch memory for the first time
        t += [r["step_time_sec"] for r in rows]
        c += [r["comm_exposed_sec"] for r in rows]
    return st.median(t), st.median(c), min(c), max(c), len(t)
dp = take("dp")
print("| strategy, bucket (elements) | step, s | exposed, s (median; least … most) | of dp's | steps |")
print("| --- | --- | --- | --- | --- |")
for n in ["dp"] + [f"ddp {b}" for b in (262144, 1048576, 2097152, 6553600, 100000000)]:
    s = take(n)
    print(f"| {n} | {s[0]:.3f} | {s[1]:.3f} ({s[2]:.3f} … {s[3]:.3f}) | {s[1] / dp[1]:.2f} | {s[4]} |")
d = json.load(open(f"{sys.argv[1]}/dp.json"))["lockstep"]
a = json.load(open(f"{sys.argv[1]}/ddp 2097152.json"))["lockstep"]["comm"]["all_reduce"]
print(f"\n{d['parameters']} parameters; ddp: rank 0 sent {a['bytes_to_other_hosts'] / 1e6:.1f} MB to the other host in {a['calls']} requests")
PY
