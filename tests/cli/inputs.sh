#!/usr/bin/env bash
# Inputs that no program should wait for or load: named pipes, devices, files of many gigabytes; names with control characters; a limit of
# the address space; a fault plan that is malformed.
. "$(dirname "$0")/../support/lib.sh"
cd "$SCRATCH" || exit 1
tokens train.bin 3000
mkfifo pipe
small() { timeout -k 1 30 "$LOCKSTEP" train --train_data_path train.bin --model tiny --num_layers 1 --num_heads 2 --seq_length 16 --micro_batch_size_per_gpu 1 --max_steps 2 "$@"; }
small --checkpoint_path run >log 2>&1 || bad "a run: $(tail -n 2 log)"

# named pipes: refused at once
lockstep() { timeout -k 1 10 "$LOCKSTEP" "$@"; }
needs="it is a named pipe; a regular file is needed"
expect 3 "$needs" lockstep train --train_data_path pipe --model tiny
expect 3 "$needs" lockstep train --train_data_path train.bin --model pipe
expect 3 "$needs" lockstep train --train_data_path train.bin --deepspeed_config pipe
expect 3 "$needs" lockstep generate --checkpoint run --prompt_file pipe
expect 3 "$needs" lockstep generate --checkpoint run --prompts pipe
expect 3 "$needs" lockstep eval --task bleu --hyp pipe --ref pipe
expect 3 "$needs" lockstep plan --schedule pipe
expect 3 "$needs" lockstep launch --hostfile pipe -n 1 -- doctor
for file in model.safetensors config.json trainer_state.json optimizer.safetensors checksums.json; do
  cp -r run broken
  rm "broken/epoch-1/$file"
  mkfifo "broken/epoch-1/$file"
  expect 3 "$needs" lockstep train --resume broken --max_steps 3
  rm -r broken
done
expect 2 "" lockstep train --train_data_path train.bin --deepspeed_config <(echo '{"no_such_key": 1}') # a pipe of the shell is read

# sizes
truncate -s 5G huge.json
for args in "--model huge.json" "--deepspeed_config huge.json"; do
  # shellcheck disable=SC2086
  expect 3 "too large: the limit for this file is 256.0 MiB" lockstep train --train_data_path train.bin $args
done
expect 3 "too large: the limit for this file is 16.0 MiB" lockstep generate --checkpoint run --prompt_file huge.json

# control characters of names
name=$(printf 'red\033[31m\a')
cp -r run "$name"
clean() { # COMMAND...
  "$@" >both 2>&1
  LC_ALL=C grep -q $'[\001-\010\013-\037]' both && bad "control characters from $*: $(cat -v both)"
}
clean lockstep report "$name" run --out page
clean lockstep train --resume "$name" --max_steps 3
clean lockstep watch "$name" --once
clean lockstep export --checkpoint "$name" --out "$name-out"
clean lockstep train --model "$name" --train_data_path train.bin
clean lockstep "$name"

# address space: the shared memory of the workers gets a part of the limit. Sanitizers need all of it
if ! ldd "$LOCKSTEP" | grep -q 'asan\|tsan'; then
  for n in 2 4; do (ulimit -v 3000000; small -n $n --checkpoint_path limited$n) >log 2>&1 || bad "-n $n under ulimit -v: $(tail -n 2 log)"; done
  # OpenBLAS starts threads of its own before main, and one without room for its 128 MiB tries again for ever
  (ulimit -v 300000; export OPENBLAS_NUM_THREADS=1; small -n 2 --checkpoint_path limited) >log 2>&1
  code=$?
  [ $code = 0 ] || [ $code = 5 ] || bad "-n 2 in 300 MB of address space: exit code $code: $(tail -n 2 log)"
fi

# faults: a malformed plan is refused before anything is written
for plan in kill kind=burn kind=kill,rank=x kind=slow; do
  expect 2 LOCKSTEP_FAULT env "LOCKSTEP_FAULT=$plan" "$LOCKSTEP" train --train_data_path train.bin --model tiny --checkpoint_path none
  [ ! -e none ] || bad "$plan: a folder is left"
done
LOCKSTEP_FAULT=kind=kill,rank=1,step=2 small -n 2 --checkpoint_path killed >log 2>&1
[ $? = 4 ] && grep -q "rank 1 .* was killed by signal 9" log || bad "kind=kill: $(tail -n 2 log)"
done_tests
