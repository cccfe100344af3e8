#!/usr/bin/env bash
# --device auto, the default: CUDA if the (emulated) device is available, otherwise the CPU. The first line reports the choice and its reason, once;
# workers agree; 16-bit DeepSpeed JSONs; LS_DEVICE; a requested device that is not available is an error.
. "$(dirname "$0")/../support/lib.sh"
unset LS_DEVICE
emu=${LS_BUILD:-$LS_SOURCE/build}/emu
[ -f "$emu/lockstep_cuda.so" ] || skip "no emulated device: built with the tests (LS_TESTS)"
export XDG_CACHE_HOME=$SCRATCH/cache LS_GEMM_TUNE=0
cd "$SCRATCH" || exit 1
mkdir d none && tokens d/train.bin 2000 && tokens d/val.bin 200 2
base=(train --data d --model tiny --num_layers 1 --num_heads 2 --embedding_size 32 --seq_length 16 --micro_batch_size_per_gpu 1 --max_steps 2)
# t NAME VARIABLES -- OPTIONS: a run into NAME, stdout and stderr together in NAME.log
t() {
  local name=$1 vars=()
  shift
  while [ "$1" != -- ]; do vars+=("$1"); shift; done
  shift
  timeout -k 5 120 env "${vars[@]}" "$LOCKSTEP" "${base[@]}" --checkpoint_path "$name" "$@" >"$name.log" 2>&1 || bad "$name: exit code $?: $(tail -n 3 "$name.log")"
}
first() { [ "$(head -n 1 "$1.log")" = "$2" ] || bad "$1: the first line is '$(head -n 1 "$1.log")', not '$2'"; }
once() { [ "$(grep -c '^device: ' "$1.log")" = 1 ] || bad "$1: $(grep -c '^device: ' "$1.log") lines of the device"; }
# metric NAME KEY: lockstep.KEY of a run's metrics
metric() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1] + "/training_metrics.json"))["lockstep"][sys.argv[2]])' "$1" "$2"; }
is() { [ "$1" = "$2" ] || bad "'$1' is not '$2' ($3)"; }

# --- one worker ---
t no-plugin LS_PLUGIN_DIR="$SCRATCH/none" --
gpus() { grep -l '^0x10de$' /sys/bus/pci/devices/*/vendor 2>/dev/null; ls /dev/nvidia0 /dev/nvhost-gpu /dev/nvmap 2>/dev/null; } # of this machine
why="" && [ -n "$(gpus)" ] && why=" (no CUDA plugin: lockstep_cuda.so not found in LS_PLUGIN_DIR ($SCRATCH/none)" # doctor has it in any case
case $(head -n 1 no-plugin.log) in "device: CPU$why"*) ;; *) bad "no plugin: $(head -n 1 no-plugin.log)" ;; esac
case $(metric no-plugin device_choice) in "CPU (no CUDA plugin: lockstep_cuda.so not found in LS_PLUGIN_DIR ($SCRATCH/none)"*) ;; *) bad "the reason in the metrics" ;; esac
is "$(metric no-plugin device) $(metric no-plugin precision)" "cpu fp32" "no plugin"
t no-device LS_PLUGIN_DIR="$emu" LS_EMU_DEVICES=0 --
grep -qE '^device: CPU($| \(no CUDA device: )' <(head -n 1 no-device.log) || bad "no device: $(head -n 1 no-device.log)"
t old LS_PLUGIN_DIR="$emu" LS_EMU_DEVICES=-1 --
grep -q '^device: CPU (the NVIDIA driver is too old' <(head -n 1 old.log) || bad "an old driver: $(head -n 1 old.log)"
t gpu LS_PLUGIN_DIR="$emu" --
first gpu "device: CUDA, emulated device (1 of 1 visible)"
once gpu
is "$(metric gpu device) $(metric gpu precision)" "cuda bf16" "a device"
is "$(metric gpu device_choice)" "CUDA, emulated device (1 of 1 visible)" "the choice in the metrics"
t asked LS_PLUGIN_DIR="$emu" -- --device cuda # the same run with the device requested
same gpu/epoch-1/model.safetensors asked/epoch-1/model.safetensors
grep -q '^device: ' asked.log && bad "a requested device is reported as a choice"
t ref LS_PLUGIN_DIR="$emu" -- --compute cpu-ref
first ref "device: CPU (for --compute)"

# text without a folder and sizes: before the lines about what is chosen and prepared
for i in $(seq 300); do echo "line $i of a text about $((i % 7)) kings"; done >text.txt
LS_PLUGIN_DIR=$SCRATCH/none "$LOCKSTEP" train text.txt --max_steps 1 --threads 1 >text.log 2>&1 || bad "text: $(tail -n 3 text.log)"
grep -qE '^device: CPU($| \(no CUDA plugin: )' <(head -n 1 text.log) || bad "text: the first line is '$(head -n 1 text.log)'"
once text
# a precision that the device does not have is refused before the text is prepared
expect 2 "--precision fp8 needs a GPU" env LS_PLUGIN_DIR="$SCRATCH/none" "$LOCKSTEP" train text.txt --checkpoint_path early --precision fp8
[ ! -e early ] || bad "prepared before the refusal: $(ls early)"
# and before a run folder is named or made
mkdir early && expect 0 "" "$LOCKSTEP" prepare text.txt --out early/data --tokenizer bytes --quiet
for p in fp8 fp16; do
    expect 2 "--precision $p.* the CPU supports only fp32 and bf16" env -C early "$LOCKSTEP" train --data data --device cpu --precision $p
    grep "run folder" "$SCRATCH/err" && bad "$p: a run folder is named"
    [ ! -e early/runs ] || bad "$p: a run folder is made"
done
expect 3 "no such file or folder" "$LOCKSTEP" train missing.txt --max_steps 1
grep -q '^device: ' err && bad "a device for a text that does not exist"

# --- precedence: the command line, then LS_DEVICE, then auto ---
t variable LS_PLUGIN_DIR="$emu" LS_DEVICE=cpu --
is "$(metric variable device)" cpu LS_DEVICE
t flag LS_PLUGIN_DIR="$emu" LS_DEVICE=cpu -- --device auto
is "$(metric flag device)" cuda "--device over LS_DEVICE"
expect 2 "LS_DEVICE 'moon': must be auto, cpu, cuda" env LS_DEVICE=moon "$LOCKSTEP" "${base[@]}"
expect 0 "device  *cpu  *environment (LS_DEVICE)" env LS_DEVICE=cpu "$LOCKSTEP" "${base[@]}" --print_config
expect 0 "device  *cuda  *default (auto: CUDA, emulated device (1 of 1 visible))" env LS_PLUGIN_DIR="$emu" "$LOCKSTEP" "${base[@]}" --print_config
grep -q '^device: ' err && bad "--print_config has the line, too"
expect 0 "auto: CPU (no CUDA plugin: " env LS_PLUGIN_DIR="$SCRATCH/none" "$LOCKSTEP" "${base[@]}" --print_config --json
python3 -c 'import json; d = json.load(open("out"))["device"]; assert d["value"] == "cpu" and d["source"] == "default", d' || bad "--print_config --json"

# --- requested and not available ---
expect 2 "no CUDA device" env LS_PLUGIN_DIR="$emu" LS_EMU_DEVICES=0 "$LOCKSTEP" "${base[@]}" --device cuda
expect 2 "no CUDA device" env LS_PLUGIN_DIR="$emu" LS_EMU_DEVICES=0 LS_DEVICE=cuda "$LOCKSTEP" "${base[@]}"
expect 2 "does not exist; check LS_PLUGIN_DIR" env LS_PLUGIN_DIR="$SCRATCH/none" "$LOCKSTEP" "${base[@]}" --device cuda

# --- 16-bit precision from a DeepSpeed JSON ---
for p in bf16 fp16; do
  echo "{\"train_micro_batch_size_per_gpu\": 1, \"$p\": {\"enabled\": true}}" >$p.json
  t $p LS_PLUGIN_DIR="$emu" -- --deepspeed_config $p.json
  is "$(metric $p device) $(metric $p precision)" "cuda $p" "a JSON with $p"
done
expect 2 "enables fp16, .*--device auto found no GPU: no CUDA plugin: " env LS_PLUGIN_DIR="$SCRATCH/none" "$LOCKSTEP" "${base[@]}" --deepspeed_config fp16.json
t bf16-cpu LS_PLUGIN_DIR="$SCRATCH/none" -- --deepspeed_config bf16.json
is "$(metric bf16-cpu device) $(metric bf16-cpu precision)" "cpu bf16" "a JSON with bf16 on the CPU"
printf '{"bf16": {"enabled": "auto"}}' >open.json # as Hugging Face's trainer writes it: the default of the device
expect 0 "precision  *bf16  *default" env LS_PLUGIN_DIR="$emu" "$LOCKSTEP" "${base[@]}" --deepspeed_config open.json --print_config
expect 0 "precision  *fp32  *default" env LS_PLUGIN_DIR="$emu" "$LOCKSTEP" "${base[@]}" --deepspeed_config open.json --device cpu --print_config
expect 0 'bf16.enabled of the DeepSpeed JSON is "auto": this run computes in fp32, the default on the CPU; --precision chooses' env LS_PLUGIN_DIR="$emu" "$LOCKSTEP" "${base[@]}" \
  --deepspeed_config open.json --device cpu
expect 2 "enables fp16, .*or --device cuda" env LS_PLUGIN_DIR="$emu" "$LOCKSTEP" "${base[@]}" --deepspeed_config fp16.json --device cpu
printf '{"fp16": {"enabled": "auto"}, "bf16": {"enabled": false}}' >mixed.json
expect 2 'mixed.json disables bf16 and has fp16.enabled "auto", which is bf16 on a GPU; add --precision fp32, fp16 or fp8' env LS_PLUGIN_DIR="$emu" "$LOCKSTEP" "${base[@]}" --deepspeed_config mixed.json
expect 0 "precision  *fp32" env LS_PLUGIN_DIR="$emu" "$LOCKSTEP" "${base[@]}" --deepspeed_config mixed.json --device cpu --print_config
expect 0 "the DeepSpeed JSON disables bf16, but --precision auto chooses it" env LS_PLUGIN_DIR="$emu" "$LOCKSTEP" "${base[@]}" --deepspeed_config mixed.json --precision auto
# a resumed run, too, obeys a typed JSON that disables its precision, also where the JSON leaves another one open
for start in --bf16 "--deepspeed_config bf16.json"; do
  t disabled LS_PLUGIN_DIR="$SCRATCH/none" -- $start
  LS_PLUGIN_DIR=$SCRATCH/none "$LOCKSTEP" train --resume disabled --max_steps 3 --deepspeed_config mixed.json >disabled.log 2>&1 || bad "disabled: $(tail -n 3 disabled.log)"
  grep -q '^steps up to 2 were computed in bf16 on the CPU, from here on in fp32 on the CPU$' disabled.log || bad "a JSON that disables bf16 ($start): $(cat disabled.log)"
  rm -r disabled
done
t open-copy LS_PLUGIN_DIR="$SCRATCH/none" -- --deepspeed_config bf16.json # the JSON of the run, which nobody typed, changes nothing
cp mixed.json open-copy/options.deepspeed.json
LS_PLUGIN_DIR=$SCRATCH/none "$LOCKSTEP" train --resume open-copy --max_steps 3 >open-copy.log 2>&1 || bad "open-copy: $(tail -n 3 open-copy.log)"
grep -q 'were computed in' open-copy.log && bad "the JSON of a run changed its precision: $(cat open-copy.log)"
# a switch that is off is not ignored; true and false as other trainers write them
expect 0 "precision  *bf16" env LS_PLUGIN_DIR="$SCRATCH/none" "$LOCKSTEP" "${base[@]}" --bf16 yes --print_config
expect 0 "precision  *fp32" env LS_PLUGIN_DIR="$SCRATCH/none" "$LOCKSTEP" "${base[@]}" --bf16 0 --print_config
expect 2 "^lockstep: bad usage: --bf16 on: this switch takes true, 1, yes, false, 0 or no" "$LOCKSTEP" "${base[@]}" --bf16=on
expect 2 "--bf16 on: 'on' is neither a value (true, 1, yes, false, 0 or no) nor a file or folder that exists" "$LOCKSTEP" train --bf16 on text.txt
t bf16-off LS_PLUGIN_DIR="$SCRATCH/none" -- --precision bf16
off() { expect 2 "$1 False, but this run would compute in ${1#--}: $2" env LS_PLUGIN_DIR="$emu" "$LOCKSTEP" train "${@:3}" "$1" False; }
off --bf16 "bf16.json enables it; use --precision fp32" "${base[@]:1}" --deepspeed_config bf16.json --device cpu
off --bf16 "it is the default on a GPU; use --precision fp32, fp16 or fp8" "${base[@]:1}"
off --bf16 "the run has --precision bf16" --resume bf16-off
expect 2 "bf16 False contradicts --precision bf16; leave one out" "$LOCKSTEP" "${base[@]}" --bf16 False --precision bf16
expect 2 "found none: no CUDA plugin" env LS_PLUGIN_DIR="$SCRATCH/none" "$LOCKSTEP" "${base[@]}" -n 2 --comm nccl

# --- several workers: forked workers inherit the choice, and open the device themselves ---
t two LS_PLUGIN_DIR="$emu" -- -n 2 --reference_output
first two "device: CUDA, emulated device (1 of 1 visible, shared by 2 workers)"
once two
grep -q 'rank=1 .*torch.cuda.current_device=0' two.log || bad "rank 1 of one GPU: $(grep rank=1 two.log)"
t three LS_PLUGIN_DIR="$emu" LS_EMU_DEVICES=4 -- -n 3
first three "device: CUDA, emulated device (3 of 4 visible)"
t two-cpu LS_PLUGIN_DIR="$emu" LS_EMU_DEVICES=0 -- -n 2
once two-cpu
is "$(metric two-cpu device)" cpu "two workers"

# --run_type optimized: one worker per visible GPU, as the launcher of DeepSpeed starts them; baseline, -n and a CPU: one
world() { LS_PLUGIN_DIR=$emu timeout 60 env "LS_EMU_DEVICES=$1" "$LOCKSTEP" "${base[@]}" "${@:2}" --print_config 2>world.err | sed -n 's/^world_size  *\([0-9]*\).*/\1/p'; }
is "$(world 2 --run_type optimized)" 2 "two cards"
grep -q "2 GPUs are visible, so 2 workers start" world.err || bad "no line about the workers: $(cat world.err)"
for one in "2 --run_type baseline" "2 --run_type optimized -n 1" "1 --run_type optimized" "2 --run_type optimized --device cpu" "2"; do # shellcheck disable=SC2086
  is "$(world $one)" 1 "$one"
done

# --- workers of a launcher detect the device separately, and agree ---
# ranks NAME DEVICES0 DEVICES1 OPTIONS: two ranks with the variables of torchrun; their exit codes into NAME.codes
ranks() {
  local name=$1 counts=("$2" "$3") r pids=()
  shift 3
  for r in 0 1; do
    RANK=$r LOCAL_RANK=$r WORLD_SIZE=2 MASTER_PORT=$((20000 + $$ % 20000)) LS_PLUGIN_DIR=$emu LS_EMU_DEVICES=${counts[r]} \
      timeout -k 5 120 "$LOCKSTEP" "${base[@]}" --checkpoint_path "$name" "$@" >"$name.$r" 2>&1 &
    pids+=($!)
  done
  for r in 0 1; do wait "${pids[r]}"; echo $?; done >"$name.codes"
  cat "$name.0" "$name.1" >"$name.log"
}
ranks both 2 2
is "$(tr '\n' ' ' <both.codes)" "0 0 " "two ranks with GPUs: $(tail -n 2 both.log)"
first both "device: CUDA, emulated device (2 of 2 visible)"
once both
ranks mixed 1 0
is "$(tr '\n' ' ' <mixed.codes)" "2 2 " "one rank without a GPU"
is "$(grep -c 'rank 1 on .* would use CPU (no CUDA device.*but 1 of 2 workers have a GPU' mixed.log)" 1 "the refusal: $(cat mixed.log)"
ranks neither 0 0 --deepspeed_config fp16.json
is "$(tr '\n' ' ' <neither.codes)" "2 2 " "16 bits without a GPU"
is "$(grep -c -- '--device auto found no GPU' neither.log)" 1 "reported once: $(cat neither.log)"

# --- a run that is resumed on another machine keeps its precision ---
# more NAME DEVICES STEPS OPTIONS: continues a run; stdout and stderr in NAME.more
more() {
  local name=$1 devices=$2 steps=$3
  shift 3
  LS_PLUGIN_DIR=$emu LS_EMU_DEVICES=$devices timeout -k 5 120 "$LOCKSTEP" train --resume "$name" --max_steps "$steps" "$@" >"$name.more" 2>&1 ||
    bad "$name resumed: exit code $?: $(tail -n 3 "$name.more")"
}
said() { grep -q -e "$2" "$1.more" || bad "$1: '$2' is not in $(head -n 5 "$1.more")"; }
more gpu 0 3
is "$(metric gpu device) $(metric gpu precision)" "cpu bf16" "resumed without a GPU"
said gpu '^steps up to 2 were computed in bf16 on the GPU, from here on in bf16 on the CPU$'
more gpu 0 4 --precision fp32
is "$(metric gpu precision)" fp32 "--precision on resume"
said gpu '^steps up to 3 were computed in bf16 on the CPU, from here on in fp32 on the CPU$'
more gpu 0 5
is "$(metric gpu precision)" fp32 "resumed with the precision that was typed"
grep -q 'were computed in' gpu.more && bad "a change is reported, but there is none: $(cat gpu.more)"
t auto LS_PLUGIN_DIR="$emu" LS_EMU_DEVICES=0 -- --precision auto
own=$(metric auto precision)
t auto LS_PLUGIN_DIR="$emu" -- --precision auto --max_steps 3 --resume # all options typed again
is "$(metric auto device) $(metric auto precision)" "cuda $own" "auto resumed on a GPU"
t restarted LS_PLUGIN_DIR="$emu" LS_EMU_DEVICES=0 -- --max_restarts 0
t restarted LS_PLUGIN_DIR="$emu" -- --max_steps 3 --attempt 2 # as a supervisor starts it on another host
is "$(metric restarted device) $(metric restarted precision)" "cuda fp32" "restarted on a GPU"

# options of the earlier run that the other precision or device does not have are left out; typed ones are refused
t fp8 LS_PLUGIN_DIR="$emu" -- --precision fp8 --fp8_format hybrid --fp8_margin 1
expect 2 "needs --precision fp8, but this run uses bf16" env LS_PLUGIN_DIR="$emu" "$LOCKSTEP" train --resume fp8 --max_steps 3 --precision bf16 --fp8_margin 2
expect 2 "the steps of this run were computed in fp8, but the CPU supports only fp32 and bf16; resume it on a GPU, or add --precision" "$LOCKSTEP" train --resume fp8 --max_steps 3 --device cpu
more fp8 1 3 --fp8_format e4m3 --fp8_margin 0
said fp8 '^steps up to 2 were computed in fp8 (fp8_format hybrid, fp8_amax_history_len 16, fp8_margin 1) on the GPU, from here on in fp8 (fp8_format e4m3, fp8_amax_history_len 16, fp8_margin 0) on the GPU$'
more fp8 1 4 --precision auto
said fp8 '^--precision auto: the precision of the run, fp8, is kept$'
grep -q 'were computed in' fp8.more && bad "a change is reported, but there is none: $(cat fp8.more)"
more fp8 1 5 --precision bf16
said fp8 '^steps up to 4 were computed in fp8 on the GPU, from here on in bf16 on the GPU$'
said fp8 '^--fp8_format of the earlier run needs --precision fp8: left out$'
said fp8 '^--fp8_margin of the earlier run needs --precision fp8: left out$'
t tf32 LS_PLUGIN_DIR="$emu" -- --precision fp32
more tf32 1 3 --tf32
said tf32 '^steps up to 2 were computed in fp32 on the GPU, from here on in tf32 on the GPU$'
more tf32 1 4
grep -q 'were computed in' tf32.more && bad "a change is reported, but there is none: $(cat tf32.more)"
more tf32 0 5 --precision bf16
said tf32 '^steps up to 4 were computed in tf32 on the GPU, from here on in bf16 on the CPU$'
said tf32 '^--tf32 of the earlier run needs --device cuda --precision fp32: left out$'
t rounded LS_PLUGIN_DIR="$emu" -- --stochastic_rounding
more rounded 1 3 --device cpu
said rounded '^steps up to 2 were computed in bf16 with stochastic rounding on the GPU, from here on in bf16 on the CPU$'
said rounded '^--stochastic_rounding of the earlier run needs --device cuda --precision bf16 or fp8: left out$'
expect 2 "--stochastic_rounding needs --device cuda --precision bf16 or fp8, but this run uses bf16 on the CPU" \
  env LS_PLUGIN_DIR="$emu" "$LOCKSTEP" train --resume rounded --max_steps 4 --device cpu --stochastic_rounding

more ref 1 3 --device cuda
said ref '^--compute of the earlier run needs --device cpu: left out$'
is "$(metric ref device)" cuda "--compute cpu-ref resumed on a GPU"
LS_PLUGIN_DIR=$SCRATCH/none "$LOCKSTEP" train text.txt --checkpoint_path summary --compute cpu-ref --max_steps 1 --threads 1 >summary.log 2>&1 || bad "summary: $(tail -n 3 summary.log)"
more summary 1 2 --device cuda # its summary, too, is made on the GPU
said summary '^a sample (temperature 0.6):$'
sed -i 's/"options": {/&"comm": "mpi",/' variable/options.json # of a run that mpirun started
more variable 0 3 -n 1
said variable '^--comm mpi of the earlier run needs workers that are started as before: left out$'

# --- the other commands ---
on_stderr() { grep -q "$1" err || bad "'$1' is not on stderr: $(head -c 300 err)"; }
cmd() { env LS_PLUGIN_DIR="$emu" timeout -k 5 300 "$LOCKSTEP" "$@" >out 2>err || bad "$1: exit code $?: $(head -c 300 err)"; }
cmd eval --checkpoint gpu --data d --seq_length 16 --max_steps 1
on_stderr '^device: CUDA, emulated device (1 of 1 visible)$'
cmd bench gemm --batch 1 --seq 8 --width 16 --layers 1 --vocab 70 --turns 1
on_stderr '^device: CUDA'
cmd bench gemm --batch 1 --seq 8 --width 16 --layers 1 --vocab 70 --turns 1 --threads 1
on_stderr '^device: CPU (for --threads)$'
TMPDIR=$SCRATCH LS_PLUGIN_DIR=$emu "$LOCKSTEP" verify -n 1 --steps 1 >out 2>err & # takes minutes on this device: its first row is enough
pid=$!
await $pid grep -q '^dp .*identical' out || bad "verify: $(cat out err)"
kill -KILL $pid 2>/dev/null
wait $pid 2>/dev/null
on_stderr '^device: CUDA, emulated device'
LS_EMU_DEVICES=0 cmd verify -n 1 --steps 1 --json
[ -n "$why" ] || ! grep '^device: ' err || bad "verify prints a device where there is no choice"
LS_PLUGIN_DIR=$emu "$LOCKSTEP" generate --checkpoint gpu >out 2>err && bad "generate without a tokenizer"
on_stderr '^device: CUDA, emulated device'
LS_PLUGIN_DIR=$emu "$LOCKSTEP" generate --checkpoint gpu --speculate 2 >out 2>err && bad "generate without a tokenizer"
on_stderr '^device: CPU (for --speculate)'
cmd eval --checkpoint gpu --data d --seq_length 16 --max_steps 1 --weights int8
on_stderr '^device: CPU (for --weights)'
cmd eval --checkpoint gpu --data d --seq_length 16 --max_steps 1 --weights bf16
on_stderr '^device: CUDA, emulated device'
LS_PLUGIN_DIR=$emu expect 2 '--weights int8: on a GPU it needs --precision bf16 or fp16, but --precision is fp32' \
  "$LOCKSTEP" eval --checkpoint gpu --data d --device cuda --precision fp32 --weights int8
LS_PLUGIN_DIR=$emu expect 2 '--weights fp32: on a GPU the weights are int8 or have the type of --precision, which is bf16' \
  "$LOCKSTEP" eval --checkpoint gpu --data d --device cuda --weights fp32
cmd doctor --device auto
grep -q '^  default  *ok  *commands without --device compute on CUDA, emulated device' out || bad "doctor's row: $(head -n 5 out)"
grep -q '^  device  *ok  *cuda: ' out || bad "doctor --device auto: $(tail -n 3 out)"
done_tests
