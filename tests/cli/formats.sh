#!/usr/bin/env bash
# docs/FORMATS.md compared with small runs, in both directions: every key, file and flag of a run is listed, and everything that is listed occurs in a run.
. "$(dirname "$0")/../support/lib.sh"
cd "$SCRATCH" || exit 1
list=$SCRATCH/list
: >"$list"
has() { printf '%s\t%s\n' "$1" "$2" >>"$list"; } # SECTION PATH
go() { "$LOCKSTEP" "$@" >out.txt 2>err.txt || bad "lockstep $*: $(head -c 300 err.txt)"; }
prints() { # SECTION COMMAND...: a JSON object on stdout
  local section=$1 file
  shift
  go "$@"
  file=$(printf '%s' "$section" | tr -c 'a-z\n' _)$(wc -l <"$list").json
  cp out.txt "$file"
  has "$section" "$file"
}
folder() { # RUN: a finished run folder
  has files:'Run folder' "$1"
  has training_metrics.json "$1/training_metrics.json"
  has metrics.jsonl "$1/metrics.jsonl"
  has options.json "$1/options.json"
  has events.jsonl "$1/events.jsonl"
  has ranks.jsonl "$1/ranks.jsonl"
  has launcher_metadata.json "$1/launcher_metadata.json"
}
checkpoint() { # FOLDER
  local f
  has files:'Checkpoint folder' "$1"
  for f in config.json generation_config.json trainer_state.json timings.json checksums.json tokenizer.json; do
    [ ! -e "$1/$f" ] || has $f "$1/$f"
  done
  for f in "$1"/*.safetensors; do has 'safetensors header' "$f"; done
}

text=$LS_SOURCE/tests/data/bpe/text.txt
prints 'prepare --json' prepare --quiet --input "$text" --out data --tokenizer train --vocab_size 400 --val_fraction 0.1 --json
has files:'Data folder' data
has meta.json data/meta.json
has tokenizer.json data/tokenizer.json

prints 'data list --json' data list --json
mkdir set served; truncate -s 19982877 served/de-en.tgz
prints 'data fetch --json' data fetch iwslt14-de-en --url "file://$SCRATCH/served" --out set --quiet --json

t=(--data data --model tiny --seq_length 32 --micro_batch_size_per_gpu 1 --threads 1)
EC2_INSTANCE_TYPE=none DIST_DEBUG=1 go train "${t[@]}" --max_steps 4 --epochs 2 --max_train_steps 2 --max_val_steps 2 --save_every 1 --eval_every 1 \
  --timing_warmup_steps 0 --timing_sample_every 1 --profile --cluster box --checkpoint_path one
SLURM_JOB_ID=1 SLURM_NODELIST=n SLURM_HOSTS=n SLURM_NNODES=1 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_GPUS=0 SLURM_JOB_PARTITION=p MASTER_ADDR=n \
  MASTER_PORT=1 CUDA_VISIBLE_DEVICES=0 NCCL_DEBUG=WARN NCCL_ALGO=Ring go train "${t[@]}" -n 2 --strategy zero1 --run_type optimized --model tiny --max_steps 4 \
  --max_val_steps 2 --precision fp32 --grad_accum_steps 2 --profile --deepspeed_config "$LS_SOURCE/tests/data/reference/deepspeed_config.json" \
  --checkpoint_path zero
go train "${t[@]}" -n 4 --pp 2 --tp 2 --schedule interleaved --interleave 2 --stages 0-1,2-2,3-3,4-5 --sequence_parallel --grad_accum_steps 2 \
  --max_steps 3 --max_val_steps 0 --no_deterministic --checkpoint_path mesh
for r in one zero mesh; do folder $r; done
for r in one zero; do
  has profiles/trace.json $r/profiles/trace.json
  has profiles/profile_summary.json $r/profiles/profile_summary.json
done
has pipeline.json mesh/pipeline.json
checkpoint one/epoch-1
checkpoint one/step-1
prints 'train --print_config --json' train "${t[@]}" --print_config --json
printf 'a b c d\n' >hyp.txt
prints 'eval --task bleu --json' eval --task bleu --hyp hyp.txt --ref hyp.txt --json
prints 'eval --task bleu --json' eval --task bleu --hyp hyp.txt --ref hyp.txt --ref hyp.txt --json
for i in $(seq 40); do printf 'das wort%d\tthe word%d\n' $((i % 9)) $((i % 9)); done >pairs.tsv
prints 'prepare --task translate --json' prepare --task translate --quiet --input pairs.tsv --test_input pairs.tsv --limit_test 2 --vocab_size 280 \
  --val_fraction 0.1 --out pairs --json
has files:'Data folder' pairs
has meta.json pairs/meta.json
has tokenizer.json pairs/tokenizer.json
go train --task translate --data pairs --model tiny --num_layers 1 --seq_length 24 --micro_batch_size_per_gpu 8 --max_steps 3 --save_every 1 --threads 1 \
  --checkpoint_path translation
folder translation
checkpoint translation/epoch-1
checkpoint translation/step-1
has 'rank<r>_results_epoch<e>.json' translation/workdir/rank0_results_epoch0.json
has 'rank<r>_gen_epoch<e>.json' translation/workdir/rank0_gen_epoch0.json
go bench r3 --n_epochs 2 --batch_size 8 --pipe_batch_size 8 --out r3 -- --data pairs --model tiny --num_layers 2 --seq_length 24 --threads 1
has r3_report.json r3/r3_report.json
prints 'eval --task translate --json' eval --task translate --checkpoint translation --data pairs --json
prints 'generate --task translate --json' generate --task translate --checkpoint translation --prompt 'das wort1' --json
prints 'eval --json' eval --checkpoint one --data data --max_steps 2 --json
prints 'generate --json' generate --checkpoint one --prompt The --max_new_tokens 4 --speculate 2 --json
echo The >prompts.txt
stop=$("$LOCKSTEP" generate --checkpoint one --prompt The --max_new_tokens 4 --no_stop --json | sed -n 's/.*"stop": "\(.*\)".*/\1/p')
grep -q "^| .*samples\[\].stop.*\`${stop:-none}\`" "$LS_SOURCE/docs/FORMATS.md" || bad "docs/FORMATS.md: samples[].stop has no '$stop'"
prints 'generate --prompts --json' generate --checkpoint one --prompts prompts.txt --max_new_tokens 4 --json
go export --checkpoint one --out hf
for f in config.json generation_config.json tokenizer.json; do has $f hf/$f; done
go import --from hf --out imported
has trainer_state.json imported/trainer_state.json
"$LOCKSTEP" verify -n 1 --steps 1 --json >verify.json 2>verify.err & # takes longest
verify=$!
has 'verify --json' verify.json
prints 'drill --json' drill --faults 1 --kinds kill -n 2 --json
prints 'doctor --json' doctor --json
prints 'doctor --burn --json' doctor --burn 0.005 -n 1 --json
LOCKSTEP_FAULT="kind=flip,tensor=param,rank=1,step=3" go train "${t[@]}" -n 2 --strategy ddp --global_batch_size 2 --max_steps 4 --save_every 2 --audit 1 \
  --audit_depth step --max_restarts 2 --max_val_steps 0 --checkpoint_path healed
folder healed
prints 'lockstep report --json' report healed --out healed-page --no_png --json

go plan --measure --seconds 1 --model tiny --seq_length 32 --micro 1 --measure_workers 1 2 --out cluster.json
has cluster.json cluster.json
prints 'plan --json' plan --model tiny --vocab_size 400 --global_batch 4 --seq_length 32 --cluster cluster.json --workers 2 --all --tokens 1000 --json
prints 'plan --check --json' plan --check zero --cluster cluster.json --json
prints 'plan --schedule --json' plan --schedule 1f1b --pp 2 --micro 4 --json

b=(--repeat 2 --steps 3 --warmup 1)
w=(-- --data data --model tiny --seq_length 32 --micro_batch_size_per_gpu 1 --max_val_steps 0)
go bench scaling -n 1,2 "${b[@]}" --out scaling "${w[@]}"
has scaling_report.json scaling/scaling_report.json
folder scaling/2gpu_ddp/run_1
go bench strategies -n 1,2 "${b[@]}" --repeat 1 --layouts ddp,zero1 --out strategies "${w[@]}"
has strategies_report.json strategies/strategies_report.json
go bench ab -n 1 "${b[@]}" --a "--recompute" --b "" --out ab "${w[@]}"
has ab_report.json ab/ab_report.json
python3 "$LS_SOURCE/tests/support/reference_runs.py" made
go bench ab made/study/base made/study/bucket --out made/ab
has ab_report.json made/ab/ab_report.json
prints 'bench comm --json' bench comm -n 2 --min 1K --max 1K --rounds 2 --json
prints 'bench gemm --json' bench gemm --turns 1 --batch 1 --seq 32 --width 64 --layers 1 --vocab 100 --threads 1 --json
sed 's/"seq_len": 32/"seq_len": 64/' mesh/training_metrics.json >longer.json
"$LOCKSTEP" report mesh longer.json --out unlike --no_png >out.txt 2>&1 # not comparable: exit code 1
has scaling_report.json unlike/scaling_report.json
has files:'Report folder' unlike
go report scaling strategies --out report
has benchmarks.json report/benchmarks.json
for f in report/*/scaling_report*.json; do has scaling_report.json "$f"; done
has files:'Report folder' report
go report strategies --no_png --out settings
has files:'Report folder' settings
# the output of nsys
mkdir -p nsys/profiles
printf ' ** NVTX Range Summary (nvtx_sum):\n\n  60.0  12  3  4  PushPop  :train/allreduce_gradients\n\n' >nsys/profiles/nsys_stats_h.txt
printf ' ** OS Runtime Summary (osrt_sum):\n\n  70.0  12,345  3  4  poll\n' >>nsys/profiles/nsys_stats_h.txt
go profile summarize --run_dir nsys
has profiles/profile_summary.json nsys/profiles/profile_summary.json

# a GPU and NCCL, as far as the fakes support them
build=${LS_BUILD:-$(dirname "$LOCKSTEP")}
measure=
if [ -e "$build/emu_nccl/lockstep_cuda.so" ] && [ -e "$build/emu_nccl/lockstep_nccl.so" ] && [ -e "$build/fake_nvml.so" ]; then
  export LS_PLUGIN_DIR=$build/emu_nccl LS_EMU_DEVICES=2 LS_GEMM_TUNE=0 XDG_CACHE_HOME=$SCRATCH/cache LS_NVML=$build/fake_nvml.so
  go train --data data --model tiny --num_layers 2 --num_heads 2 --embedding_size 32 --seq_length 16 --micro_batch_size_per_gpu 1 --max_steps 3 --max_val_steps 1 --threads 1 \
    --device cuda --precision fp16 -n 2 --strategy zero1 --comm nccl --nccl_proof full --profile --checkpoint_path gpu
  folder gpu
  "$LOCKSTEP" plan --measure --device cuda --seconds 0.2 --model gpu/epoch-1/config.json --seq_length 16 --micro 1 --measure_workers 1 --out gpu.json >measure.log 2>&1 &
  measure=$!
  has cluster.json gpu.json
  has nccl/summary.json gpu/nccl/summary.json
  has profiles/profile_summary.json gpu/profiles/profile_summary.json
  has profiles/trace.json gpu/profiles/trace.json
  checkpoint gpu/epoch-1
  go train --data data --model tiny --num_layers 1 --num_heads 2 --seq_length 16 --micro_batch_size_per_gpu 1 --max_steps 1 --max_val_steps 0 --threads 1 \
    --device cuda --precision fp8 --checkpoint_path fp8
  folder fp8
  checkpoint fp8/epoch-1
  for how in "fp32 --tf32" "bf16 --stochastic_rounding"; do
    # shellcheck disable=SC2086
    go train --data data --model tiny --num_layers 1 --num_heads 2 --seq_length 16 --micro_batch_size_per_gpu 1 --max_steps 1 --max_val_steps 0 --threads 1 \
      --device cuda --precision $how --checkpoint_path "${how% *}"
    checkpoint "${how% *}/epoch-1"
  done
  prints 'bench comm --json' bench comm -n 2 --device cuda --comm nccl --min 1K --max 1K --rounds 2 --json
  prints 'bench gemm --json' bench gemm --device cuda --turns 1 --batch 1 --seq 16 --width 64 --layers 1 --vocab 100 --json
  for word in GPU NCCL fp16 fp8; do has met $word; done
else
  echo "keys of GPU runs are not checked: the emulated device and the fakes were not built"
fi

# every variable of the program is in the list
while IFS= read -r v; do
  [ "$v" = LOCKSTEP_ATTEMPT ] || [ "$v" = LOCKSTEP_LAUNCH ] || # of a supervisor or launcher, for its workers
    sed -n '/^### Environment/,$p' "$LS_SOURCE/docs/FORMATS.md" | grep -q "\`$v\`" || bad "docs/FORMATS.md, Environment: no $v"
done < <(grep -rhoE 'getenv\("L(OCKSTEP|S)_[A-Z_0-9]+"' "$LS_SOURCE/src" | cut -d '"' -f 2 | sort -u)

[ -z "$measure" ] || wait $measure || bad "plan --measure --device cuda: $(tail -2 measure.log)"
wait $verify || bad "verify: $(head -c 300 verify.err)"
python3 "$LS_SOURCE/tests/support/formats.py" "$LS_SOURCE/docs/FORMATS.md" "$LOCKSTEP" "$list" || bad "docs/FORMATS.md and the runs differ"
done_tests
