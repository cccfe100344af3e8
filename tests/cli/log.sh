#!/usr/bin/env bash
# LS_LOG: nothing is logged by default; each subsystem prints its lines at its level, and only the subsystems that were selected.
. "$(dirname "$0")/../support/lib.sh"
unset LS_LOG
d=$SCRATCH/d
mkdir -p "$d" && tokens "$d/train.bin" 6000 && tokens "$d/val.bin" 1500 2
base=(--data "$d" --model tiny --seq_length 64 --micro_batch_size_per_gpu 2 --max_steps 2 --threads 1)
line='^[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3} r[0-9]+ '

# run NAME LEVEL COMMAND...: runs with LS_LOG=LEVEL; the log lines of stderr go to $SCRATCH/NAME
run() {
  local name=$1 level=$2
  shift 2
  LS_LOG=$level "$@" >"$SCRATCH/out" 2>"$SCRATCH/err" || bad "exit code $? with LS_LOG=$level: $*: $(tail -n 3 "$SCRATCH/err")"
  grep -E "$line" "$SCRATCH/err" >"$SCRATCH/$name" || true
}
# has NAME SUBSYSTEM LEVEL TEXT: a line of that subsystem and level with that text was logged
has() { grep -Eq "$line$2 +$3 +.*$4" "$SCRATCH/$1" || bad "$1: no '$3' line of $2 with '$4'"; }
# only NAME PATTERN: every line logged matches 'subsystem level'
only() {
  local other
  other=$(sed -E "s/$line//" "$SCRATCH/$1" | grep -Ev "^($2) " | head -n 2)
  [ -z "$other" ] || bad "$1: unexpected lines: $other"
}
t() { "$LOCKSTEP" train "${base[@]}" "$@"; }

# By default nothing is logged.
t --checkpoint_path "$SCRATCH/quiet" -n 2 >"$SCRATCH/out" 2>"$SCRATCH/err" || bad "the run failed: $(tail -n 3 "$SCRATCH/err")"
! grep -E "$line" "$SCRATCH/err" || bad "log lines without LS_LOG"
cp "$SCRATCH/quiet/training_metrics.json" "$SCRATCH/metrics.json" || bad "the run wrote no metrics"

# info: rank 0 prints what was chosen.
run info info t --checkpoint_path "$SCRATCH/run" -n 2 --strategy zero2 --save_every 1
only info '[a-z]+ +info'
! grep -Eq ' r1 ' "$SCRATCH/info" || bad "rank 1 prints info lines"
has info config info "strategy zero2, dp 2 x pp 1 x tp 1"
has info device info "device 'cpu'"
has info device info "kernels cpu: .* matmul"
has info comm info "started 2 workers"
has info data info "train.bin: 6000 tokens, 93 sequences of 64"
has info parallel info "strategy zero2 over 2 data-parallel workers: buckets of [0-9]+ elements"
has info memory info "the plan needs [0-9.]+ MiB per worker"
has info model info "random initial weights, seed 1337"
has info train info "from step 0 to 2"
has info checkpoint info "saved .*/run/step-1 \(step 1\)"
has info checkpoint info "saved .*/run/epoch-1 \(step 2\)"

# Lines of several workers are not mixed, and each has the rank of the worker that printed it.
run whole trace t --checkpoint_path "$SCRATCH/whole_lines" -n 2 --strategy zero3
torn=$(grep -E " r[0-9]+ [a-z]+ +(info|debug|trace) .* r[0-9]+ [a-z]+ +(info|debug|trace) " "$SCRATCH/err" | head -n 1)
[ -z "$torn" ] || bad "two lines in one: $torn"
grep -Eq " r1 comm +debug +worker 1 of 2 uses cores" "$SCRATCH/whole" || bad "worker 1 logs under another rank: $(grep "uses cores" "$SCRATCH/whole")"

# debug: every rank prints details; info is included.
run debug debug t --checkpoint_path "$SCRATCH/run" -n 2 --pp 2 --grad_accum_steps 2 --max_steps 4 --profile
only debug '[a-z]+ +(info|debug)'
has debug pipeline info "schedule 1f1b: 2 stages"
has debug pipeline debug "stage 0, part 0: units 0 to [0-9]+"
has debug pipeline debug "stage 1 runs [0-9]+ actions"
has debug parallel debug "rank 1 has dp 0, pp 1, tp 0"
has debug parallel debug "buffers for [0-9]+ gradient elements in flight and"
has debug comm debug "worker 1 has pid"
has debug comm debug "worker 0 of 2 uses cores"
has debug memory debug "MiB: parameters [0-9.]+, gradients"
has debug model debug "tiny: 4 layers, 4 heads, width 128"
has debug train debug "step 1: loss [0-9.]+, .*exposed communication"
has debug train debug "validation: loss"
has debug checkpoint debug "moved .*/run/step-1 to .*/earlier-1"
has debug checkpoint debug "writing epoch-1 in the background"
has debug profile info "tracing every worker"
grep -Eq ' r1 train +debug step 1:' "$SCRATCH/debug" || bad "rank 1 prints no debug lines"

# Resume: which checkpoint was found, checked and loaded.
run resume checkpoint=debug t --checkpoint_path "$SCRATCH/run" --resume --max_steps 5 -n 2 --pp 2 --grad_accum_steps 2
only resume 'checkpoint +(info|debug)'
has resume checkpoint info "newest checkpoint in .*/run: .*/run/epoch-1"
has resume checkpoint debug "checksums of .*/run/epoch-1 match"
has resume checkpoint info "loaded .*/run/epoch-1: step 4, with optimizer state"
run pruned checkpoint=debug t --checkpoint_path "$SCRATCH/prune" --save_every 1 --keep_last 1 --max_steps 3
has pruned checkpoint debug "removing .*/step-1"

# trace: every collective, bucket, batch and buffer; by subsystem.
run trace comm=trace,parallel=trace,warn t --checkpoint_path "$SCRATCH/ddp" -n 2 --strategy ddp
only trace '(comm|parallel) +(info|debug|trace)'
has trace comm trace "all_reduce of [0-9]+ elements, 2 ranks, at "
has trace parallel trace "bucket of [0-9]+ elements: units"
run shards parallel=trace,warn t --checkpoint_path "$SCRATCH/zero2" -n 2 --strategy zero2
has shards parallel trace "buckets of at most [0-9]+ elements: unit 1, [0-9]+ elements"
run trace2 data=trace,memory=trace t --checkpoint_path "$SCRATCH/one"
only trace2 '(data|memory) +(info|debug|trace)'
has trace2 data trace "epoch 0: sequences 0 to 1"
has trace2 memory trace "unit 0: [0-9]+ bytes at offset"

# One subsystem may be quieter than the rest.
run mixed info,data=warn,train=debug t --checkpoint_path "$SCRATCH/one"
! grep -Eq "${line}data " "$SCRATCH/mixed" || bad "data=warn prints info lines of data"
has mixed train debug "step 1:"
has mixed device info "kernels"
! grep -Eq "${line}device +debug" "$SCRATCH/mixed" || bad "train=debug prints debug lines of device"

# A launcher, a DeepSpeed file, preparing data, generating text, planning.
echo '{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1}' >"$SCRATCH/ds.json"
run json config=debug t --checkpoint_path "$SCRATCH/one" --deepspeed_config "$SCRATCH/ds.json"
has json config debug "read the DeepSpeed configuration .*ds.json"
for _ in 1 2 3 4 5 6 7 8; do echo "the quick brown fox jumps over the lazy dog"; done >"$SCRATCH/text.txt"
gzip -kf "$SCRATCH/text.txt"
run prepare data=debug "$LOCKSTEP" prepare --input "$SCRATCH/text.txt.gz" --out "$SCRATCH/bytes" --tokenizer bytes --quiet
has prepare data debug "text.txt.gz: gzip"
has prepare data info "[0-9]+ training tokens and [0-9]+ validation tokens"
cp "$SCRATCH/bytes/tokenizer.json" "$SCRATCH/one/epoch-1/"
run generate info,data=debug "$LOCKSTEP" generate --checkpoint "$SCRATCH/one/epoch-1" --prompt "the" --max_new_tokens 2
has generate infer info "weights from .*epoch-1"
has generate checkpoint info "loaded .*epoch-1: step 2, without optimizer state"
has generate data debug "tokenizer from"
run plan plan=info "$LOCKSTEP" plan --model gpt2 --global_batch 8 --cluster h100 --workers 2
has plan plan info "layouts of 2 workers, [0-9]+ fit in memory"
only plan 'plan +info'

# What is not valid is reported, and the rest applies.
LS_LOG=loud,comms=debug,device=info "$LOCKSTEP" eval --checkpoint "$SCRATCH/one" --data "$d" >"$SCRATCH/out" 2>"$SCRATCH/err" ||
  bad "LS_LOG with unknown names fails the command: $(cat "$SCRATCH/err")"
grep -Eq "${line}log +warn  LS_LOG: 'loud' is not a level" "$SCRATCH/err" || bad "'loud' is not reported"
grep -Eq "${line}log +warn  LS_LOG: unknown subsystem 'comms'" "$SCRATCH/err" || bad "an unknown subsystem is not reported"
grep -Eq "${line}device +info" "$SCRATCH/err" || bad "the valid part of LS_LOG is not used"

# Call traces: of the command and of workers, with LS_LOG=debug or error=debug only.
none=(--train_data_path "$SCRATCH/none.bin" --model tiny --checkpoint_path "$SCRATCH/fail")
for n in 1 2; do
  "$LOCKSTEP" train "${none[@]}" -n "$n" 2>"$SCRATCH/err" >/dev/null && bad "missing data is accepted"
  grep -q "none.bin" "$SCRATCH/err" || bad "-n $n: no error: $(cat "$SCRATCH/err")"
  ! grep -E '^  (at|via) ' "$SCRATCH/err" || bad "-n $n: a call trace without LS_LOG=debug"
  LS_LOG=error=debug "$LOCKSTEP" train "${none[@]}" -n "$n" 2>"$SCRATCH/err" >/dev/null && bad "missing data is accepted"
  grep -Eq '^  at [a-z]+/[a-z_]+\.c:[0-9]+' "$SCRATCH/err" || bad "-n $n: no call trace with LS_LOG=error=debug"
  grep -Eq '^  via ' "$SCRATCH/err" || bad "-n $n: no callers with LS_LOG=error=debug"
done

# docs/LOGGING.md lists every subsystem of core/log.c.
if [ -f "$LS_SOURCE/docs/LOGGING.md" ]; then
  names=$(sed -n '/ls_log_subsystems\[\] = {/,/};/p' "$LS_SOURCE/src/core/log.c" | grep -o '"[a-z]*"' | tr -d '"')
  [ "$(wc -w <<<"$names")" -ge 10 ] || bad "cannot read the list of subsystems"
  for s in $names; do grep -q "^| \`$s\` |" "$LS_SOURCE/docs/LOGGING.md" || bad "docs/LOGGING.md does not list $s"; done
else
  bad "docs/LOGGING.md is missing"
fi
done_tests
