#!/usr/bin/env bash
# plan_vs_run.sh - checks `lockstep plan`: measures this machine, predicts, runs and compares every strategy with 1, 2, 4, 8 workers.
# ls-bench: by name
#
#   perf/plan_vs_run.sh [-s SECONDS] [-w "1 2 4 8"] [-c "CASE ..."] [-r ROUNDS] [-f] [-b BOUND] OUT_DIR
#
#   -s  approximate total time [900]      -w  numbers of workers; those above the number of cores are skipped ["1 2 4 8"]
#   -c  cases [all]: single dp ddp zero1 zero2 zero3 gpipe 1f1b zb interleaved tp
#   -r  rounds: runs of each case, interleaved with the others [4]
#   -f  use the fastest 10 % of repetitions and steps (shared machine)
#   -b  maximum difference in percent [10]
#
# For each number of workers: measure the cluster, run all cases, measure, run them again, measure … The speed of a machine changes over
# time, so a round is predicted with the clusters before and after it, and the results of a case are means over rounds. The table shows the
# differences between clusters (drift) and rounds (spread). Impossible cases (tp on one worker) are skipped.
# Writes OUT_DIR/results.jsonl (one line per case, from plan --check --json), cluster files, run folders; prints a table. Exit code 1 when a
# difference of tokens/s is above the bound or a byte of memory differs.
set -u
here=$(cd "$(dirname "$0")/.." && pwd)
LOCKSTEP=${LOCKSTEP:-$here/build/lockstep}
seconds=900 workers="1 2 4 8" cases="single dp ddp zero1 zero2 zero3 gpipe 1f1b zb interleaved tp" rounds=4 fast="" bound=10
while getopts s:w:c:r:fb: o; do
  case $o in
    s) seconds=$OPTARG ;; w) workers=$OPTARG ;; c) cases=$OPTARG ;; r) rounds=$OPTARG ;; f) fast=--fastest ;; b) bound=$OPTARG ;;
    *) sed -n 2,13p "$0"; exit 2 ;;
  esac
done
shift $((OPTIND - 1))
out=${1:?"OUT_DIR is missing"}
mkdir -p "$out" || exit 2
cores=$(nproc)
T=${T:-128} B=${B:-4} M=${M:-4} LAYERS=${LAYERS:-6} WIDTH=${WIDTH:-256} HEADS=${HEADS:-8} VOCAB=${VOCAB:-4096}

cat >"$out/config.json" <<X
{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": $LAYERS, "n_head": $HEADS, "n_embd": $WIDTH, "n_positions": $T,
 "n_ctx": $T, "vocab_size": $VOCAB, "activation_function": "gelu_new", "bos_token_id": 0, "eos_token_id": 0}
X
python3 - "$out/train.bin" "$VOCAB" $((T * B * M * 16 * 8)) <<'P' || exit 2
import random, struct, sys
r, n = random.Random(1), int(sys.argv[3])
open(sys.argv[1], "wb").write(struct.pack(f"<{n}H", *(r.randrange(int(sys.argv[2])) for _ in range(n))))
P

flags() { # CASE WORKERS -> flags of train, or nothing where it cannot be
  case $1 in
    single) [ "$2" = 1 ] && echo "--strategy single" ;;
    dp | ddp | zero1 | zero2 | zero3) [ "$2" -gt 1 ] && echo "--strategy $1" ;;
    gpipe | 1f1b | zb) [ "$2" = 2 ] && echo "--pp 2 --schedule $1"; [ "$2" -gt 2 ] && echo "--pp 2 --schedule $1 --strategy ddp" ;;
    interleaved) [ "$2" = 2 ] && echo "--pp 2 --schedule interleaved --interleave 2"
                 [ "$2" -gt 2 ] && echo "--pp 2 --schedule interleaved --interleave 2 --strategy zero1" ;;
    tp) [ "$2" = 2 ] && echo "--tp 2"; [ "$2" -gt 2 ] && echo "--tp 2 --strategy ddp" ;;
  esac
}

check() { # CASE ROUND CLUSTER: the run of that round by the cluster as it was measured then
  "$LOCKSTEP" plan --check "$out/run-$w-$1-$2" --cluster "$out/cluster-$w-$3.json" $fast --json >"$out/check-$2-$3.json" 2>>"$out/run-$w-$1-$2.log"
}

n_case=0 n_w=0
for w in $workers; do
  [ "$w" -le "$cores" ] || { echo "$w workers: skipped, only $cores cores"; continue; }
  n_w=$((n_w + 1))
  for c in $cases; do [ -n "$(flags "$c" "$w")" ] && n_case=$((n_case + 1)); done
done
[ $n_case -gt 0 ] || { echo "nothing to run"; exit 2; }
for_measure=$((seconds * 4 / 10 / n_w / (rounds + 1))) for_run=$((seconds * 5 / 10 / n_case / rounds))
[ $for_measure -lt 4 ] && for_measure=4
[ $for_run -lt 2 ] && for_run=2
echo "$n_case cases: $((rounds + 1)) x $for_measure s to measure each number of workers, $rounds x $for_run s for each run; $cores cores, load $(cut -d' ' -f1 /proc/loadavg)"
: >"$out/results.jsonl"

for w in $workers; do
  [ "$w" -le "$cores" ] || continue
  near=$w # stages of a pipeline may get more or fewer cores than the others: their neighbours are measured, too
  case " $cases " in *\ gpipe\ * | *\ 1f1b\ * | *\ zb\ * | *\ interleaved\ *)
    [ $((w * 2)) -le "$cores" ] && [ "$w" -gt 1 ] && near="$near $((w * 2))"
    [ $((w / 2)) -ge 1 ] && near="$near $((w / 2))" ;;
  esac
  measure() { # NUMBER
    timeout $((for_measure * 4 + 120)) "$LOCKSTEP" plan --measure --model "$out/config.json" --seq_length "$T" --micro "$B" \
      --measure_workers $near --seconds "$for_measure" $fast --out "$out/cluster-$w-$1.json" >/dev/null 2>"$out/measure-$w.log" ||
      { echo "measuring $w workers failed:"; tail -3 "$out/measure-$w.log"; return 1; }
  }
  measure 1 || continue
  ran=""
  for round in $(seq "$rounds"); do
    for c in $cases; do
      f=$(flags "$c" "$w")
      [ -n "$f" ] || continue
      run="$out/run-$w-$c-$round"
      train() { # steps
        rm -rf "$run"
        timeout $((for_run * 6 + 120)) "$LOCKSTEP" train --train_data_path "$out/train.bin" --model "$out/config.json" --seq_length "$T" \
          --micro_batch_size_per_gpu "$B" --grad_accum_steps "$M" --device cpu -n "$w" $f --max_steps "$1" --checkpoint_path "$run" >"$run.log" 2>&1
      }
      if [ "$round" = 1 ]; then # three steps show how many fit in the time
        train 3 && check "$c" 1 1 || { echo "$w workers, $c: failed, see $run.log"; tail -2 "$run.log"; continue; }
        python3 -c "
import json
s = json.load(open('$out/check-1-1.json'))['measured']['step']
print(max(9, min(400, int($for_run / s))))" >"$out/steps-$w-$c"
        ran="$ran $c"
      fi
      [ -s "$out/steps-$w-$c" ] || continue
      train "$(cat "$out/steps-$w-$c")" || echo "$w workers, $c: failed, see $run.log"
      rm -rf "$run"/epoch-* "$run"/step-*
    done
    measure $((round + 1)) || continue 2
  done
  for c in $ran; do
    for round in $(seq "$rounds"); do
      check "$c" "$round" "$round" && check "$c" "$round" $((round + 1)) ||
        { echo "$w workers, $c: not checked, see $out/run-$w-$c-$round.log"; continue 2; }
    done
    python3 - "$out" "$c" "$rounds" <<'P'
import json, sys
out, case, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
of = {(r, k): json.load(open(f"{out}/check-{r}-{k}.json")) for r in range(1, rounds + 1) for k in (r, r + 1)}
runs = [(r, r) for r in range(1, rounds + 1)]
def mean(what, which):
    return {k: sum(of[i][what][k] for i in which) / len(which) if isinstance(v, float) else v for k, v in of[1, 1][what].items()}
row = dict(of[1, 1], case=case, memory_equal=all(x["memory_equal"] for x in of.values()),
           predicted=mean("predicted", list(of)), measured=mean("measured", runs))
for name, what, which in ("drift", "predicted", list(of)), ("spread", "measured", runs):
    v = [of[i][what]["tokens/s"] for i in which]
    row[name] = max(v) / min(v) - 1
open(f"{out}/results.jsonl", "a").write(json.dumps(row) + "\n")
p, m = row["predicted"]["tokens/s"], row["measured"]["tokens/s"]
print(f"{row['workers']} workers, {case}: predicted {p:.0f}, measured {m:.0f} tokens/s, {100 * (p / m - 1):+.1f} %", flush=True)
P
  done
done
rm -f "$out"/check-*.json "$out"/steps-*

python3 - "$out/results.jsonl" "$bound" "$n_case" <<'P'
import json, sys
rows, bound = [json.loads(l) for l in open(sys.argv[1])], float(sys.argv[2])
print(f"\n{'workers':>7} {'case':12} {'predicted':>10} {'measured':>10} tokens/s  {'diff':>7}  {'drift':>6} {'spread':>6}   exposed s pred/meas    bubble pred/meas  memory")
worst, bad = 0, 0
for d in rows:
    p, m = d["predicted"], d["measured"]
    diff = 100 * (p["tokens/s"] / m["tokens/s"] - 1)
    worst = max(worst, abs(diff))
    bad += abs(diff) > bound or not d["memory_equal"]
    bubble = f"{100*p['bubble']:5.1f} / {100*m['bubble']:5.1f} %" if "bubble" in p else " " * 15
    print(f"{d['workers']:7} {d['case']:12} {p['tokens/s']:10.0f} {m['tokens/s']:10.0f}           {diff:+6.1f}%  {100*d['drift']:5.1f}% {100*d['spread']:5.1f}%   "
          f"{p['exposed communication']:8.4f} / {m['exposed communication']:8.4f}   {bubble:>17}  {'equal' if d['memory_equal'] else 'DIFFERS'}"
          f"{'' if abs(diff) <= bound else '   <-- above ' + format(bound, 'g') + ' %'}")
print(f"\n{len(rows)} of {sys.argv[3]} cases, worst difference {worst:.1f} %, {bad} out of bounds ({bound:g} %, memory equal)")
sys.exit(bool(bad) or len(rows) < int(sys.argv[3]))
P
