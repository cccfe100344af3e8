#!/usr/bin/env bash
# verify: layouts that run at the same time print the same rows as one after the other; a layout that hangs is a failed row, and the others continue;
# SIGTERM ends all processes; options that cannot be applied are refused.
. "$(dirname "$0")/../support/lib.sh"
command -v pgrep >/dev/null || skip "pgrep is missing (package procps)"
export TMPDIR=$SCRATCH/tmp; mkdir -p "$TMPDIR"

# rows FILE: without times
rows() { sed 's/ *[0-9.]* s   / /' "$1"; }
for jobs in 0 3; do
  "$LOCKSTEP" verify -n 2 --only_tp --steps 1 --jobs $jobs >"$SCRATCH/jobs$jobs" 2>&1 || bad "verify --jobs $jobs: $(tail -n 2 "$SCRATCH/jobs$jobs")"
done
[ "$(rows "$SCRATCH/jobs0")" = "$(rows "$SCRATCH/jobs3")" ] || bad "--jobs 3 prints other rows: $(diff <(rows "$SCRATCH/jobs0") <(rows "$SCRATCH/jobs3") | head -n 4)"
grep -Eq "^precision fp32; cpu: [a-z0-9]+ vectors, .* matmul.*, 1 thread" "$SCRATCH/jobs3" || bad "what was verified: $(head -n 1 "$SCRATCH/jobs3")"
"$LOCKSTEP" verify -n 2 --only_tp --steps 1 --jobs 0 --precision auto --json >"$SCRATCH/json" || bad "verify --json fails"
python3 - "$SCRATCH/json" <<'PY' || bad "what was verified: $(head -n 5 "$SCRATCH/json")"
import json, sys
d = json.load(open(sys.argv[1]))
kernel = d["compute"].split(" matmul")[0].split()[-1]
assert d["device"] == "cpu" and d["precision"] == ("bf16" if "bf16" in kernel or "bfmmla" in kernel else "fp32") and len(d["layouts"]) == 4, d
PY
expect 2 "-n 1 --only_tp: no layout to test: tensor parallelism needs two workers or more" "$LOCKSTEP" verify -n 1 --only_tp
grep -q "^0 of 4 layouts identical, 4 within" "$SCRATCH/jobs3" || bad "the last line: $(tail -n 1 "$SCRATCH/jobs3")"

# hang ARGS...: starts verify and stops a worker of a layout; pid and victim are set
hang() {
  "$LOCKSTEP" verify -n 2 --only_tp --steps 1 "$@" >"$SCRATCH/hang" 2>&1 &
  pid=$!
  victim=
  while kill -0 $pid 2>/dev/null; do
    for task in $(pgrep -P $pid); do victim=$(pgrep -P "$task" | head -n 1); [ -z "$victim" ] || break 2; done
    sleep 0.01
  done
  [ -n "$victim" ] && kill -STOP "$victim" || bad "no worker was seen"
}
gone() { # nothing of process group or folder is left
  for _ in $(seq 2000); do kill -0 "$victim" 2>/dev/null || break; sleep 0.05; done
  kill -0 "$victim" 2>/dev/null && { bad "worker $victim outlived $1"; kill -9 "$victim"; }
  [ -z "$(ls "$TMPDIR")" ] || bad "$1 leaves $(ls "$TMPDIR")"
}
hang --timeout 12
wait $pid
code=$?
[ $code = 1 ] || bad "a layout that hangs: exit code $code: $(tail -n 2 "$SCRATCH/hang")"
grep -q "^single .*failed: timed out after 12 s" "$SCRATCH/hang" || bad "a layout that hangs has no row: $(cat "$SCRATCH/hang")"
[ "$(grep -c ": loss\|timed out" "$SCRATCH/hang")" = 4 ] || bad "the others do not go on: $(cat "$SCRATCH/hang")"
gone "a layout that hangs"

hang --jobs 2
kill -TERM $pid
begin=$SECONDS
wait $pid
code=$?
[ $code = 143 ] || bad "SIGTERM: exit code $code: $(tail -n 2 "$SCRATCH/hang")"
[ $((SECONDS - begin)) -lt 20 ] || bad "SIGTERM: ended after $((SECONDS - begin)) s"
gone SIGTERM

# after some rows: the last line has how many layouts are missing, and the one that ran has no row
two() { [ "$(grep -c " s   identical$" "$SCRATCH/some")" -ge 2 ]; }
for jobs in 1 0; do
  "$LOCKSTEP" verify -n 1,2 --steps 1 --jobs $jobs >"$SCRATCH/some" 2>&1 &
  pid=$!
  until two || ! kill -0 $pid 2>/dev/null; do sleep 0.05; done # ctest limits the time: other work may take the cores
  kill -TERM $pid
  wait $pid
  code=$?
  rows=$(grep -c " s   identical$" "$SCRATCH/some")
  [ $code = 143 ] && grep -q "^stopped after $rows of [0-9]* layouts: $rows identical$" "$SCRATCH/some" && ! grep -q "layouts identical\|failed" "$SCRATCH/some" ||
    bad "SIGTERM after $rows rows with --jobs $jobs: exit code $code: $(tail -n 4 "$SCRATCH/some")"
done

# SIGTERM as soon as the temporary folder exists
"$LOCKSTEP" verify -n 1 >"$SCRATCH/early" 2>&1 &
pid=$!
until [ -n "$(ls "$TMPDIR")" ] || ! kill -0 $pid 2>/dev/null; do :; done
kill -TERM $pid
wait $pid
code=$?
[ $code = 143 ] || bad "SIGTERM at the start: exit code $code: $(tail -n 2 "$SCRATCH/early")"
[ -z "$(ls "$TMPDIR")" ] || bad "SIGTERM at the start leaves $(ls "$TMPDIR")"

expect 2 "use --device cuda" "$LOCKSTEP" verify --comm nccl
# refusals of the device: the whole message, and no table without rows
refused() { # TEXT COMMAND...
  expect 2 "$@"
  [ ! -s "$SCRATCH/out" ] && [ "$(grep -c "$1" "$SCRATCH/err")" = 1 ] || bad "$*: $(cat "$SCRATCH/out" "$SCRATCH/err")"
}
LS_PLUGIN_DIR=$SCRATCH refused "lockstep_cuda.so does not exist; check LS_PLUGIN_DIR" "$LOCKSTEP" verify --device cuda -n 1
LS_PLUGIN_DIR=$SCRATCH refused "lockstep_cuda.so does not exist; check LS_PLUGIN_DIR" "$LOCKSTEP" verify --device cuda -n 1 --jobs 1 --json
emu=${LS_BUILD:-$LS_SOURCE/build}/emu_nccl
if [ -e "$emu/lockstep_nccl.so" ]; then
  export NCCL_MULTI_RANK_GPU_ENABLE=yes
  LS_EMU_DEVICES=1 LS_PLUGIN_DIR=$emu refused "is 'yes', not 1); set it to 1, use --comm local .* or use one GPU per rank$" "$LOCKSTEP" verify --device cuda --comm nccl -n 2
  LS_EMU_DEVICES=1 LS_PLUGIN_DIR=$emu refused "use one GPU per rank" "$LOCKSTEP" bench comm --device cuda --comm nccl -n 2 --max 4K
  unset NCCL_MULTI_RANK_GPU_ENABLE
fi
expect 2 "unknown option --bf16; did you mean --precision bf16?" "$LOCKSTEP" verify --bf16
for option in "fp8_margin 0" "fp8_format hybrid" "fp8_amax_history_len 3"; do # shellcheck disable=SC2086
  expect 2 "^lockstep: .*--${option% *} needs --precision fp8, but this run uses fp32 on the CPU" "$LOCKSTEP" verify --device cpu -n 1 --$option
done
expect 2 "start the workers with mpirun" "$LOCKSTEP" verify --comm mpi
expect 2 "one of auto|local|mpi|tcp|nccl" "$LOCKSTEP" verify --comm pigeon
expect 2 "0 to 64" "$LOCKSTEP" verify --jobs 65
expect 2 "more than 0" "$LOCKSTEP" verify --timeout 0
expect 2 "one layout at a time" env RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29555 "$LOCKSTEP" verify --jobs 2

# workers that a launcher started: rank 0 prints the table
for r in 1 0; do
  RANK=$r WORLD_SIZE=2 LOCAL_RANK=$r MASTER_ADDR=127.0.0.1 MASTER_PORT=29556 "$LOCKSTEP" verify --only_tp --steps 1 >"$SCRATCH/rank$r" 2>&1 &
done
wait -n && wait -n || bad "verify with torchrun's variables: $(tail -n 3 "$SCRATCH"/rank?)"
grep -q "4 of 4\|0 of 4 layouts identical, 4 within" "$SCRATCH/rank0" && [ ! -s "$SCRATCH/rank1" ] || bad "torchrun's variables: $(cat "$SCRATCH"/rank?)"
done_tests
