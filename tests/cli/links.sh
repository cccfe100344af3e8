#!/usr/bin/env bash
# A run folder of a stranger: names in it that are links to files outside are neither written nor read, by no command; and what it records sends
# no output out of it. The folder itself may be a link.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
lockstep=${LOCKSTEP:-$here/../../build/lockstep}
[ -x "$lockstep" ] || { echo "skipped: $lockstep is not built"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

fail() { echo "FAILED: $*"; [ ! -s out.txt ] || tail -5 out.txt; exit 1; }
sums() { (cd outside && find . -type f -exec sha256sum {} + | sort && find . | sort); }
# untouched CODE COMMAND...: exit code and no change outside
untouched() {
    local code=$1 rc=0 before
    shift
    before=$(sums)
    timeout 60 "$@" >out.txt 2>&1 || rc=$?
    [ "$rc" = "$code" ] || fail "exit code $rc instead of $code: $*"
    [ "$before" = "$(sums)" ] || fail "files outside have changed: $*"
}
named() { tr -s '\n ' ' ' <out.txt | grep -q "symbolic link, which is not followed inside a run folder" || fail "no line about the link: $*"; }

for i in $(seq 300); do echo "line $i of a text that is $((i * 7919 % 1000)) words long and no longer"; done >text.txt
"$lockstep" prepare --input text.txt --out data --tokenizer bytes >/dev/null 2>&1
cat >small.json <<'JSON'
{"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 16, "vocab_size": 257}
JSON
cat >ds.json <<'JSON'
{"train_micro_batch_size_per_gpu": 2, "csv_monitor": {"enabled": true, "output_path": "run/csv", "job_name": "a"}}
JSON
"$lockstep" train --data data --model small.json --seq_length 16 --threads 1 --checkpoint_path run --deepspeed_config ds.json --run_type optimized \
    --tensorboard run/tb --max_steps 2 --save_every 2 --profile >/dev/null 2>&1
"$lockstep" train --resume run --max_steps 4 --save_memory_every 1 --profile >/dev/null 2>&1
cp -r run base

# Each name of the folder in turn, as a link to a copy of it outside; what a resumed run leaves alone is not named.
touch base/pipeline.json base/nccl_topo.xml
mkdir -p base/nccl
for name in launcher_metadata.json ranks.jsonl events.jsonl metrics.jsonl options.json options.deepspeed.json training_metrics.json \
    RUN_COMPLETE.txt pipeline.json nccl nccl_topo.xml profiles profiles/trace.json profiles/profile_summary.json tb csv csv/a \
    csv/a/Train_Samples_lr.csv epoch-1 epoch-1/trainer_state.json epoch-1/model.safetensors memory_copy; do
    [ -e "base/$name" ] || [ "$name" = memory_copy ] || fail "the run has no $name"
    rm -rf run outside
    cp -r base run
    mkdir outside
    if [ -e "base/$name" ]; then cp -r "base/$name" outside/it; else echo 0123456789abcdef >outside/it; fi
    rm -rf "run/$name"
    ln -s "$work/outside/it" "run/$name"
    code=3
    case $name in ranks.jsonl | events.jsonl | training_metrics.json | RUN_COMPLETE.txt | pipeline.json | nccl_topo.xml | memory_copy) code=0 ;; esac
    untouched $code "$lockstep" train --resume run --max_steps 6 --profile --save_memory_every 1
    case $name in training_metrics.json | RUN_COMPLETE.txt | pipeline.json | nccl_topo.xml | memory_copy) ;; *) named "$name" ;; esac
done
echo "ok  train --resume: no name of the run folder is followed"

# All names at once.
rm -rf run outside
cp -r base outside
(cd base && find . -type d -exec mkdir -p ../run/{} \; && find . -type f -exec ln -s "$work/outside/{}" ../run/{} \;)
for command in "train --resume run" "report run --out page" "profile summarize --run_dir run" "generate --checkpoint run hello" \
    "generate --checkpoint run/epoch-1 hello" "export --checkpoint run --out copy" "eval --checkpoint run --data data" "plan --check run"; do
    # shellcheck disable=SC2086
    untouched 3 "$lockstep" $command
    named "$command"
done
untouched 0 "$lockstep" watch run --once
named watch
grep -q failed out.txt || fail "watch does not show that the run cannot be read"
for name in training_metrics.json options.json options.deepspeed.json metrics.jsonl; do
    rm -rf run outside
    cp -r base run
    mkdir outside
    mv "run/$name" outside/it
    ln -s "$work/outside/it" "run/$name"
    untouched 3 "$lockstep" plan --check run
    named "plan --check: $name"
done
echo "ok  readers: no name of the run folder is followed"

# Pipes that nobody writes.
for name in ranks.jsonl launcher_metadata.json profiles/trace.json profiles/profile_summary.json metrics.jsonl options.json csv/a/Train_Samples_lr.csv; do
    rm -rf run
    cp -r base run
    rm "run/$name"
    mkfifo "run/$name"
    code=3
    [ $name != ranks.jsonl ] || code=0
    untouched $code "$lockstep" train --resume run --max_steps 6 --profile
    [ $code = 0 ] || grep -q "a regular file is needed" out.txt || fail "no line about the pipe $name"
    case $name in profiles/*) untouched 3 "$lockstep" profile summarize --run_dir run ;; esac
done
echo "ok  pipes in a run folder"

# The folder may be a link, and so may a path that was typed.
rm -rf run outside
mkdir outside
cp -r base run
ln -s run latest
untouched 0 "$lockstep" train --resume latest --max_steps 6
ln -s ../elsewhere run/epoch-1/notes
untouched 0 "$lockstep" generate --checkpoint latest --max_new_tokens 2 hello
echo "ok  a run folder that is a link"

# Where a resumed run writes.
sed -i "s:$work/run/tb:$work/outside/tb:" run/options.json
untouched 2 "$lockstep" train --resume run --max_steps 8
grep -q -- "outside the run folder; repeat --tensorboard" out.txt || fail "no advice"
"$lockstep" train --resume run --max_steps 8 --tensorboard outside/tb >/dev/null 2>&1
[ -d outside/tb ] || fail "--tensorboard of the command line is not used"
sed -i "s:$work/outside/tb:$work/run/tb/../../outside/tb2:" run/options.json
untouched 2 "$lockstep" train --resume run --max_steps 9
sed -i "s:$work/run/tb/../../outside/tb2:$work/run/tb:; s:\"deepspeed_folder\"\: \".*\":\"deepspeed_folder\"\: \"$work/outside\":" run/options.json
untouched 2 "$lockstep" train --resume run --max_steps 9
grep -q -- "the files of csv_monitor go to .* repeat --deepspeed_config" out.txt || fail "no advice on csv_monitor"
echo "ok  what a run folder records sends no output out of it"

# What a run prints to continue it repeats what goes outside; a plan writes nothing there.
rm -rf run
sed 's:run/csv:csv:' ds.json >out.json
"$lockstep" train --data data --model small.json --seq_length 16 --threads 1 --checkpoint_path run --deepspeed_config out.json --run_type optimized \
    --tensorboard 't b' --max_steps 2 --save_every 2 --summary >out.txt 2>&1
next=$(grep -- "train --resume run --max_steps 4" out.txt) || fail "no next command"
[[ $next = *" --tensorboard 't b' --deepspeed_config out.json" ]] || fail "the next command is $next"
bash -c "$next" >out.txt 2>&1 || fail "the printed command is refused: $next"
untouched 2 "$lockstep" train --resume run --max_steps 6
untouched 0 "$lockstep" plan --check run
rm -rf run
cp -r base run
untouched 0 "$lockstep" plan --check run
echo "ok  commands that are printed, and plan --check, with output outside"

# The folder of a bench.
b=(bench ab -n 1 --repeat 2 --steps 3 --warmup 1 --a "--lr 1e-3" --b "--lr 2e-3" --out bb)
train=(-- --data data --model small.json --seq_length 16 --threads 1 --micro_batch_size_per_gpu 2)
"$lockstep" "${b[@]}" "${train[@]}" >out.txt 2>&1 || fail "bench ab"
rm -rf outside
mkdir outside
cp bb/ab_report.json outside/it
rm bb/1cpu_b/run_2/RUN_COMPLETE.txt
cp -r bb bc
mv bb/1cpu_b outside/b
ln -s "$work/outside/b" bb/1cpu_b
untouched 3 "$lockstep" "${b[@]}" --resume "${train[@]}"
named "bench --resume: the folder of a side"
rm -r bb
mv bc bb
ln -sf "$work/outside/it" bb/ab_report.json
untouched 3 "$lockstep" "${b[@]}" --resume "${train[@]}"
named "bench --resume: the results"
echo "ok  bench --resume"

# A folder whose path is not UTF-8.
away=$'caf\xe9'
mkdir "$away"
cp -r data small.json "$away"
(cd "$away" && "$lockstep" train --data data --model small.json --seq_length 16 --threads 1 --micro_batch_size_per_gpu 2 --checkpoint_path run --max_steps 1 --save_every 1 >/dev/null 2>&1)
untouched 0 "$lockstep" train --resume "$away/run" --max_steps 2
grep -q "step 2/2" out.txt || fail "a path that is not UTF-8: the run is not continued"
echo "ok  a path that is not UTF-8"
