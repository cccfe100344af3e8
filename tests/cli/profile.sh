#!/usr/bin/env bash
# Traced runs: every rank on one clock, the same bits as untraced, a summary from the trace; profile -- train; with and without nsys.
. "$(dirname "$0")/../support/lib.sh"
check="$LS_SOURCE/tests/support/trace_check.py"
mkdir -p "$SCRATCH/d" && tokens "$SCRATCH/d/train.bin" 20000 && tokens "$SCRATCH/d/val.bin" 2000 2
args=(--data "$SCRATCH/d" --model tiny --seq_length 64 --micro_batch_size_per_gpu 2 --global_batch_size 8 --max_steps 6 --save_every 3
      --threads 1)
run() { local name=$1; shift; timeout 120 "$LOCKSTEP" "$@" "${args[@]}" --checkpoint_path "$SCRATCH/$name" >"$SCRATCH/$name.log" 2>&1; }

run plain train || bad "untraced: $(tail -3 "$SCRATCH/plain.log")"
[ -e "$SCRATCH/plain/profiles" ] && bad "an untraced run left profiles/"
for layout in "1 -n 1" "2 -n 2 --bucket 100000" "2 -n 2 --strategy zero3" "2 -n 2 --pp 2 --schedule zb" "2 -n 2 --tp 2" \
  "4 -n 4 --pp 2 --schedule interleaved --interleave 2"; do
  n=${layout%% *}
  # shellcheck disable=SC2086
  run t train ${layout#* } --profile || bad "$layout: $(tail -3 "$SCRATCH/t.log")"
  need=(step phase unit checkpoint)
  [ "$n" = 1 ] || need+=(collective wait)
  case $layout in *--pp*) need+=(pipeline) ;; esac
  python3 "$check" "$SCRATCH/t/profiles/trace.json" "$n" "${need[@]}" >"$SCRATCH/check" 2>&1 || bad "$layout: $(tail -3 "$SCRATCH/check")"
  [ "$(ls "$SCRATCH/t/profiles")" = "profile_summary.json
trace.json" ] || bad "$layout left $(ls "$SCRATCH/t/profiles")"
  case $layout in *--tp*) ;; *) same "$SCRATCH/plain/epoch-1/model.safetensors" "$SCRATCH/t/epoch-1/model.safetensors" ;; esac
  rm -rf "$SCRATCH/t"
done

# the command profile, and a lane that is too short
run p profile -- train -n 2 --profile_spans 64 || bad "profile -- train: $(tail -3 "$SCRATCH/p.log")"
grep -q "^Collectives, all ranks" "$SCRATCH/p.log" && grep -q "^The trace has no whole step: older spans were dropped" "$SCRATCH/p.log" || bad "short lanes: $(tail -20 "$SCRATCH/p.log")"
python3 "$check" "$SCRATCH/p/profiles/trace.json" 2 unit collective >"$SCRATCH/check" 2>&1 || bad "short lanes: $(tail -3 "$SCRATCH/check")"
grep -q "older spans were dropped" "$SCRATCH/p.log" || bad "dropped spans were not reported"
python3 - "$SCRATCH/p" <<'PY' || bad "the summary"
import json, sys
s = json.load(open(sys.argv[1] + "/profiles/profile_summary.json"))
keys = """generated_at_utc run_dir slurm_job_id hosts world_size gpu cuda torch deepspeed seq_length micro_batch_size_per_gpu grad_accum_steps
tokens_per_sec total_wall_time_sec nsys_report inputs nvtx_top5 osrt_top5 likely_bottleneck per_file lockstep""".split()
assert list(s) == keys, list(s)
assert s["world_size"] == 2 and s["inputs"] == ["trace.json"] and s["seq_length"] == 64
assert all(set(r) == {"kind", "name", "time_percent", "total_time", "raw"} for r in s["nvtx_top5"])
ours = s["lockstep"]
assert ours["ranks"] == 2 and ours["dropped_spans"] > 0 and ours["clock_error_ns"] == 0
assert {c["name"] for c in ours["collectives"]} >= {"all_reduce", "all_gather", "agree"}
PY
expect 2 "cannot be profiled" "$LOCKSTEP" profile -- eval --data x
expect 2 "profile_spans" "$LOCKSTEP" train --data "$SCRATCH/d" --profile --profile_spans 0

# SIGTERM: the trace of the steps that ran is complete
"$LOCKSTEP" train -n 2 "${args[@]}" --max_steps 100000 --epochs 10000 --save_every 0 --profile --checkpoint_path "$SCRATCH/term" >"$SCRATCH/term.log" 2>&1 &
pid=$!
await $pid [ -s "$SCRATCH/term/metrics.jsonl" ] || bad "no step before SIGTERM: $(tail -3 "$SCRATCH/term.log")"
kill -TERM $pid; wait $pid
[ $? = 143 ] || bad "SIGTERM in a traced run: $(tail -3 "$SCRATCH/term.log")"
python3 "$check" "$SCRATCH/term/profiles/trace.json" 2 step >"$SCRATCH/check" 2>&1 || bad "after SIGTERM: $(tail -3 "$SCRATCH/check")"

# nsys: a missing nsys is reported and the trace is still written; a fake nsys gets the command line of docs/PROFILE.md
NSYS=1 NSYS_BIN=no-such-nsys run n profile -- train || bad "NSYS=1 without nsys: $(tail -3 "$SCRATCH/n.log")"
[ "$(grep -c "no-such-nsys not found" "$SCRATCH/n.log")" = 1 ] || bad "a missing nsys was not reported once"
for words in "^Time of a step by rank, ms" "^rank  *step  *forward  *backward  *optimizer  *input  *comm exposed  *other  *comm hidden" "^Operations, all ranks"; do
  grep -q "$words" "$SCRATCH/n.log" || bad "profile -- train does not print '$words': $(tail -20 "$SCRATCH/n.log")"
done
[ -s "$SCRATCH/n/profiles/trace.json" ] || bad "no trace without nsys"
cat >"$SCRATCH/nsys" <<'SH'
#!/bin/bash
echo "$@" >>"$(dirname "$0")/nsys.words"
what=$1; shift
if [ "$what" = stats ]; then printf ' ** NVTX Range Summary (nvtx_sum):\n\n  60.0  12  3  4  PushPop  :train/allreduce_gradients\n'; exit; fi
while [ $# -gt 0 ]; do case $1 in --output) out=$2; shift 2 ;; --*) shift ;; *) break ;; esac; done
touch "$out.nsys-rep"
exec "$@"
SH
chmod +x "$SCRATCH/nsys"
NSYS=1 NSYS_BIN="$SCRATCH/nsys" NSYS_TRACE=nvtx SLURM_JOB_ID=7 run w profile -- train || bad "NSYS=1: $(tail -3 "$SCRATCH/w.log")"
for word in "profile --trace=nvtx --sample=none" "--output $SCRATCH/w/profiles/nsys_7_$(hostname)" "stats --report=nvtx_sum"; do
  grep -q -- "$word" "$SCRATCH/nsys.words" || bad "nsys was not started with $word: $(cat "$SCRATCH/nsys.words")"
done
[ -s "$SCRATCH/w/profiles/nsys_stats_$(hostname).txt" ] || bad "no nsys stats"

# --profile_mode reports its phases to a profiler (the NVTX protocol; a fake profiler that counts)
if command -v cc >/dev/null; then
  cat >"$SCRATCH/watch.c" <<'C'
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef void (*fn)(void);
typedef struct { size_t nbytes; int (*table)(int module, fn ***out, unsigned *n); } callbacks;
static FILE *out;
static int depth;
static int push(const char *name) { fprintf(out, "%s\n", name); return depth++; }
static int pop(void) { if (--depth < 0) fprintf(out, "UNBALANCED\n"); fflush(out); return depth; }
int InitializeInjectionNvtx2(const void *(*get)(unsigned));
int InitializeInjectionNvtx2(const void *(*get)(unsigned))
{
    const callbacks *c = get(1);
    for (int module = 1; module <= 6; module++) {
        fn **slot = NULL;
        unsigned n = 0;
        if (c->nbytes < sizeof *c || !c->table(module, &slot, &n) || slot[0] || slot[n]) return 0;
        for (unsigned i = 1; i < n; i++) if (!slot[i]) return 0;
        if (module == 1) *slot[9] = (fn)push, *slot[11] = (fn)pop;
    }
    out = fopen(getenv("WATCH_OUT"), "w");
    return out != NULL;
}
C
  cc -shared -fPIC -o "$SCRATCH/watch.so" "$SCRATCH/watch.c" || bad "the fake profiler does not build"
  export NVTX_INJECTION64_PATH=$SCRATCH/watch.so WATCH_OUT=$SCRATCH/ranges
  run v train --profile_mode || bad "with a profiler: $(tail -3 "$SCRATCH/v.log")"
  for r in train/dataload train/forward train/loss train/backward train/optimizer_step train/allreduce_gradients val/forward val/loss \
    "forward embed" "forward h.0" "forward head" "backward h.0" "backward embed"; do
    grep -qx "$r" "$SCRATCH/ranges" || bad "no range $r"
  done
  [ "$(grep -cx train/optimizer_step "$SCRATCH/ranges")" = 6 ] || bad "not one range per step: $(sort "$SCRATCH/ranges" | uniq -c)"
  grep -q UNBALANCED "$SCRATCH/ranges" && bad "ranges are not balanced"
  grep -qE "Step [0-9]+, Loss|tokens/s  " "$SCRATCH/v.log" && bad "--profile_mode prints steps"
  rm -f "$SCRATCH/ranges"
  run v train || bad "without --profile_mode"
  [ -e "$SCRATCH/ranges" ] && bad "ranges without --profile_mode"
  PROFILE_MODE=1 run v train && [ -s "$SCRATCH/ranges" ] || bad "PROFILE_MODE=1 is not --profile_mode"
fi
done_tests
