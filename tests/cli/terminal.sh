#!/usr/bin/env bash
# `train` on a terminal: one status line, events above it, whatever the width and the number of workers; in a pipe: plain lines.
. "$(dirname "$0")/../support/lib.sh"
export TERM=xterm
unset NO_COLOR
cd "$SCRATCH" || exit 1
mkdir d && tokens d/train.bin 6000 && tokens d/val.bin 1500 2
run=("$LOCKSTEP" train --data d --model tiny --num_layers 1 --num_heads 2 --embedding_size 32 --seq_length 32 --micro_batch_size_per_gpu 2 --threads 1
     --max_val_steps 3 --eval_every 8 --save_every 8)
# terminal COLUMNS COMMAND...: what the user sees goes to `seen`, the facts to `facts`
terminal() { timeout -k 5 100 python3 "$LS_SOURCE/tests/support/terminal.py" "$@" >seen 2>facts; }
fact() { sed -n "s/.*\b$1=\([-0-9.]*\).*/\1/p" facts; }
is() { [ "$1" = "$2" ] || bad "$3: $1, expected $2: $(tail -n 3 seen) $(cat facts)"; }

# ---- widths: nothing wraps, events are whole, one status line is left, at the end ----
for columns in 40 80 200; do
  terminal $columns "${run[@]}" --max_steps 20 --checkpoint_path run
  is "$(fact exit)" 0 "exit code at $columns columns"
  grep -q WRAPPED seen && bad "$columns columns: a line is too wide: $(grep WRAPPED seen)"
  [ "$(awk '{ if (length > m) m = length } END { print m }' seen)" -le $columns ] || bad "$columns columns: a line is too wide"
  for event in 'step 8  validation loss [0-9.]*$' 'step 8  saving step-8$' 'step 16  validation loss [0-9.]*$' 'step 20  saving epoch-1$'; do
    [ "$(grep -cE "^$event" seen)" = 1 ] || bad "$columns columns: no line '$event': $(cat seen)"
  done
  is "$(grep -c '^step [0-9]*/20  loss ' seen)" 1 "status lines left at $columns columns"
  tail -n 1 seen | grep -q '^step 20/20  loss [0-9.]*' || bad "$columns columns: the last line: $(tail -n 1 seen)"
  is "$(fact column)" 0 "the column of the cursor"
done
tail -n 1 seen | grep -qE 'mean [0-9.]+  lr \S+  norm \S+  [0-9]+ tokens/s  .*eta 0s  mem [0-9.]+ [KMG]iB$' || bad "200 columns: fields are missing: $(tail -n 1 seen)"
is "$([ "$(fact colours)" -gt 0 ] && echo yes)" yes "colours on a terminal"
grep -qE '\[Rank|current_device|EXITING' seen && bad "lines of the reference trainer: $(cat seen)"

# ---- several workers share the terminal; log lines of all of them and the reference lines appear above the status line, whole ----
LS_LOG=train=debug,comm=debug terminal 100 "${run[@]}" -n 2 --max_steps 20 --reference_output --checkpoint_path run
is "$(fact exit)" 0 "exit code of two workers"
grep -qE '^\[Rank 0\] Validation at step 8. Average Loss: [0-9.]+$' seen || bad "no reference line: $(cat seen)"
for r in 0 1; do
  is "$(grep -c "^..:..:..\.... r$r train *debug step [0-9]*: loss " seen)" 20 "log lines of rank $r"
  grep -q "^\[Rank $r\] EXITING cleanly$" seen || bad "the last line of rank $r: $(tail -n 3 seen)"
done
is "$(grep -c '^step [0-9]*/20  loss ' seen)" 1 "status lines left by two workers"

# ---- drawn about 10 times per second, however fast the steps are ----
terminal 80 "${run[@]}" --eval_every 0 --save_every 0 --seq_length 8 --max_steps 400 --checkpoint_path run
awk -v n="$(fact drawings)" -v s="$(fact seconds)" 'BEGIN { exit !(n >= 1 && n <= 10 * s + 10) }' || bad "drawings: $(cat facts)"
[ "$(wc -l <run/metrics.jsonl)" = 400 ] || bad "not 400 steps"

# ---- colours: not with NO_COLOR; a terminal that cannot erase gets plain lines ----
NO_COLOR=1 terminal 80 "${run[@]}" --max_steps 3 --checkpoint_path run
is "$(fact colours)" 0 "colours with NO_COLOR"
is "$([ "$(fact drawings)" -gt 0 ] && echo yes)" yes "a status line with NO_COLOR"
TERM=dumb terminal 80 "${run[@]}" --max_steps 3 --checkpoint_path run
is "$(fact drawings) $(fact colours)" "0 0" "drawings and colours of a dumb terminal"

# ---- the width changes while the run goes on; Ctrl-C leaves the cursor at the beginning of a line ----
PTY_RAW=raw PTY_RESIZE="step 1/:40" terminal 200 "${run[@]}" --eval_every 0 --save_every 0 --max_steps 200 --checkpoint_path run
is "$(fact exit)" 0 "exit code after a change of the width"
python3 - <<'PY' || bad "the line does not follow the width"
import re
drawn = [re.sub("\x1b\\[[0-9;]*[A-Za-z]", "", d) for d in re.findall("\r(\x1b\\[1m[^\r\n]*)", open("raw", newline="").read())]
assert len(drawn[0]) > 60 and len(drawn[-1]) <= 40, (drawn[0], drawn[-1])
PY
for n in 1 2; do
  PTY_SIGINT="loss" terminal 80 "${run[@]}" -n $n --max_steps 100000 --epochs 100000 --eval_every 0 --save_every 0 --checkpoint_path run
  is "$(fact exit) $(fact column)" "143 0" "Ctrl-C with $n workers"
  tail -n 2 seen | grep -q "stopped by SIGINT (Ctrl-C): saved" || bad "Ctrl-C: $(tail -n 3 seen)"
done

# ---- a failure is the last thing on the terminal ----
for n in 1 2; do
  terminal 200 "${run[@]}" -n $n --lr 1e6 --clip 0 --warmup_steps 0 --max_steps 60 --reference_output --checkpoint_path run
  is "$(fact exit)" 1 "exit code of a failure"
  tail -n 1 seen | grep -q "^lockstep: .*numerical failure" || bad "the last line after a failure: $(tail -n 1 seen)"
  grep -q EXITING seen && bad "EXITING after a failure"
done

# ---- pipes: no carriage returns, no escape sequences, few lines; the form of a line is that of scripts ----
"${run[@]}" --max_steps 400 --seq_length 8 --eval_every 200 --save_every 0 --checkpoint_path run >out 2>err || bad "a run in a pipe: $(tail -n 3 err)"
[ -s out ] && bad "stdout without reference output: $(cat out)"
grep -q "$(printf '[\r\033\036]')" err && bad "control characters in a pipe"
grep -qE '^step 1/400  loss [0-9.]+  lr \S+  norm \S+  [0-9]+ tokens/s  [0-9.]+ TFLOP/s  eta \S+  mem ' err || bad "the form of a step: $(grep '^step 1/' err)"
for s in 1 2 5 10 20 50 100 200 400; do grep -q "^step $s/400  loss " err || bad "no line of step $s"; done
[ "$(grep -c '^step [0-9]*/400 ' err)" -le 20 ] || bad "too many lines: $(grep -c '^step [0-9]*/400 ' err)"
grep -q '^step 200  validation loss' err || bad "no validation in a pipe"
[ "$(wc -l <err)" -le 40 ] || bad "too many lines: $(cat err)"
"${run[@]}" -n 2 --max_steps 8 --steps_per_print 2 --eval_every 0 --checkpoint_path run >out 2>err || bad "two workers in a pipe: $(tail -n 3 err)"
grep -q "$(printf '[\r\033\036]')" err && bad "control characters in a pipe of two workers"
is "$(grep -c '^step [0-9]*/8 ' err)" 4 "lines with --steps_per_print 2"
[ "$(grep -c '^memory ' err)" = 1 ] && ! grep -q '^memory plan' err || bad "the memory in one line: $(cat err)"
expect 0 "^memory plan  *MiB" "${run[@]}" --verbose --max_steps 1 --checkpoint_path run

# ---- the choice and the loss curve of a run without options fit into a narrow terminal ----
seq 20000 >text.txt
terminal 60 "$LOCKSTEP" train text.txt --max_steps 70 --num_layers 1 --embedding_size 32 --seq_length 32 --batch_size 4 --threads 1 --checkpoint_path chosen
is "$(fact exit)" 0 "exit code of a run without options"
sed -n '/^chosen for/,/^a sample/p' seen | grep -E 'WRAPPED|^.{61}' && bad "60 columns: a line is too wide"
is "$(grep -cE '^ *loss, o validation, steps 1 to 70$' seen)" 1 "a curve"

# ---- other commands use the same line ----
seq 200000 >numbers.txt
terminal 30 "$LOCKSTEP" prepare numbers.txt --out numbers --tokenizer bytes
is "$(fact exit) $([ "$(fact drawings)" -gt 0 ] && echo drawn)" "0 drawn" "prepare on a terminal"
grep -q '%)' seen && bad "prepare leaves its status: $(cat seen)"
"$LOCKSTEP" prepare numbers.txt --out numbers --tokenizer bytes 2>err >out || bad "prepare in a pipe: $(cat err)"
[ -s err ] && bad "prepare prints progress for a second of work: $(cat err)"
terminal 30 "$LOCKSTEP" eval --checkpoint run --data d --seq_length 32
is "$(fact exit) $([ "$(fact drawings)" -gt 0 ] && echo drawn)" "0 drawn" "eval on a terminal"
grep -q "WRAPPED\|sequences" seen && bad "eval leaves its status: $(cat seen)"
done_tests
