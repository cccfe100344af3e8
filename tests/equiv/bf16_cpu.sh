#!/usr/bin/env bash
# --precision bf16 on the CPU: the same bits with any number of threads and workers under every strategy and pipeline; losses near those of fp32;
# a checkpoint goes from one precision to the other; requests that the CPU cannot honour are refused.
# The kernel is the best of this CPU, or the emulated one.
. "$(dirname "$0")/../support/lib.sh"
mkdir -p "$SCRATCH/d" && tokens "$SCRATCH/d/train.bin" 9000 && tokens "$SCRATCH/d/val.bin" 300 2
base=(train --data "$SCRATCH/d" --model tiny --num_layers 2 --embedding_size 48 --num_heads 4 --seq_length 33 --micro_batch_size_per_gpu 1
      --global_batch_size 4 --dropout 0.1 --epochs 1 --lr 1e-3)
run() { local name=$1; shift; timeout 120 "$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/$name" "$@" >"$SCRATCH/$name.log" 2>&1 || bad "$name: $(tail -3 "$SCRATCH/$name.log")"; }
value() { python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); print(d["lockstep"]["precision"], d["training_config"]["precision"])' "$SCRATCH/$1/training_metrics.json"; }

run one --precision bf16 --threads 1 --max_steps 4
[ "$(value one)" = "bf16 bf16_mixed" ] || bad "the record of a bf16 run: $(value one)"
layout() {
  local name=$1
  shift
  run "$name" --precision bf16 --max_steps 4 "$@"
  same "$SCRATCH/one/epoch-1/model.safetensors" "$SCRATCH/$name/epoch-1/model.safetensors"
}
layout threads --threads 3
layout ddp -n 2 --strategy ddp
layout zero2 -n 4 --strategy zero2
layout zero3 -n 2 --strategy zero3
layout pp -n 2 --pp 2
run tp --precision bf16 --max_steps 4 -n 2 --tp 2
run tp2 --precision bf16 --max_steps 4 -n 4 --tp 2 --strategy zero3
same "$SCRATCH/tp/epoch-1/model.safetensors" "$SCRATCH/tp2/epoch-1/model.safetensors"

# auto: the line of the model names the choice, and so does --print_config; a precision that was typed is not repeated
run auto --precision auto --max_steps 1
chosen=$(value auto) && chosen=${chosen% *}
grep -q "^model .* matmul.*, .* threads*; precision $chosen (auto: this CPU has [no ]*bf16 instructions)$" "$SCRATCH/auto.log" || bad "auto: $(cat "$SCRATCH/auto.log")"
grep -v "^bf16 is emulated: " "$SCRATCH/one.log" | grep -q "precision" && bad "--precision bf16: $(cat "$SCRATCH/one.log")"
expect 0 "^ *precision  *$chosen .*(--precision auto: this CPU has" "$LOCKSTEP" "${base[@]}" --precision auto --print_config

# more rows than the classifier takes at a time
many=(--precision bf16 --num_layers 1 --micro_batch_size_per_gpu 66 --global_batch_size 132 --max_steps 1)
run many "${many[@]}" --threads 1
run many2 "${many[@]}" -n 2 --strategy zero1
same "$SCRATCH/many/epoch-1/model.safetensors" "$SCRATCH/many2/epoch-1/model.safetensors"

# bf16 changes the numbers, and by little; a longer run learns the same
steps=40; [ "${LS_TEST_ALL:-0}" = 1 ] && steps=100
run exact --precision fp32 --max_steps 4
cmp -s "$SCRATCH/one/epoch-1/model.safetensors" "$SCRATCH/exact/epoch-1/model.safetensors" && bad "bf16 has the bits of fp32"
for p in fp32 bf16; do run long-$p --precision $p --max_steps $steps --epochs 2; done
python3 - "$SCRATCH" $steps <<'PY' || bad "losses of bf16 and fp32"
import json, sys
def losses(p): return [json.loads(x)["loss"] for x in open(f"{sys.argv[1]}/long-{p}/metrics.jsonl") if '"loss"' in x]
a, b = losses("fp32"), losses("bf16")
assert len(a) == len(b) == int(sys.argv[2]) and a != b, (len(a), len(b))
worst = max(abs(x - y) for x, y in zip(a, b))
end = abs(sum(a[-10:]) - sum(b[-10:])) / 10
print(f"{len(a)} steps: fp32 {a[0]:.4f} -> {a[-1]:.4f}, bf16 {b[0]:.4f} -> {b[-1]:.4f}; largest difference {worst:.4f}, last ten {end:.4f}")
assert a[-1] < a[0] - 0.3 and worst < 0.05 and end < 0.01, (worst, end)
PY

# the weights of a checkpoint are fp32: either precision continues it
cp -r "$SCRATCH/one" "$SCRATCH/back"
run back --precision fp32 --resume --max_steps 6
[ "$(value back)" = "fp32 fp32" ] || bad "resumed in fp32: $(value back)"
# a precision that is named needs nothing of options.json; one that is not is the run's
python3 - "$SCRATCH/back/options.json" <<'PY' || bad "options.json"
import json, sys
d = json.load(open(sys.argv[1]))
assert d["computed"]["precision"] == "fp32", d
d["computed"]["precision"] = "fp33"
json.dump(d, open(sys.argv[1], "w"))
PY
cp -r "$SCRATCH/back" "$SCRATCH/back2"
resume=("$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/back2" --resume --max_steps 8)
expect 3 '"computed" has no "precision", or one that this program does not know; add --precision' "${resume[@]}"
head -c 100 "$SCRATCH/back/options.json" >"$SCRATCH/back2/options.json"
expect 3 'options.json.*; add --precision' "${resume[@]}"
echo '{"version": 99, "options": {}}' >"$SCRATCH/back2/options.json"
expect 3 'version 99 is not supported' "${resume[@]}" --precision fp32
run back --precision fp32 --resume --max_steps 8
# without the file, the checkpoint tells the precision: nothing else is chosen in silence
cp -r "$SCRATCH/one" "$SCRATCH/gone" && rm "$SCRATCH/gone/options.json"
resume=("$LOCKSTEP" "${base[@]}" --checkpoint_path "$SCRATCH/gone" --resume --max_steps 5)
lost='gone/epoch-1: its steps were computed in bf16, but .* choose fp32; add --precision bf16 to continue in it, or --precision fp32'
expect 2 "$lost" "${resume[@]}"
expect 2 "$lost" "${resume[@]}" -n 2
run gone --resume --max_steps 5 --precision bf16
[ "$(value gone)" = "bf16 bf16_mixed" ] || bad "without options.json: $(value gone)"
rm "$SCRATCH/gone/options.json"
run gone --resume --max_steps 6 --precision fp32
grep -q '^steps up to 5 were computed in bf16, from here on in fp32$' "$SCRATCH/gone.log" || bad "a change: $(cat "$SCRATCH/gone.log")"
run gone --resume --max_steps 6 && rm "$SCRATCH/gone/options.json" && run gone --resume --max_steps 6 # nothing left to compute
# a JSON that is typed changes the precision, also of a run with --precision, and the next resume keeps it
echo '{"bf16": {"enabled": true}}' >"$SCRATCH/bf16.json" && echo '{"bf16": {"enabled": false}}' >"$SCRATCH/off.json"
more() { timeout 120 "$LOCKSTEP" train --resume "$SCRATCH/exact" "$@" >"$SCRATCH/more.log" 2>&1 || bad "exact: $(tail -3 "$SCRATCH/more.log")"; }
more --max_steps 5 --deepspeed_config "$SCRATCH/bf16.json"
grep -q '^steps up to 4 were computed in fp32 on the CPU, from here on in bf16 on the CPU$' "$SCRATCH/more.log" || bad "a JSON: $(cat "$SCRATCH/more.log")"
more --max_steps 6
[ "$(value exact)" = "bf16 bf16_mixed" ] || bad "resumed after a JSON: $(value exact)"
more --max_steps 7 --precision auto && more --max_steps 8 --deepspeed_config "$SCRATCH/off.json"
[ "$(value exact)" = "fp32 fp32" ] || bad "a JSON without bf16: $(value exact)"
# other kernels are reported, in the same precision
kernels() { # OPTIONS.JSON KERNEL: resumes the first run with them
  rm -rf "$SCRATCH/kernels" && cp -r "$SCRATCH/one" "$SCRATCH/kernels" && cp "$1" "$SCRATCH/kernels/options.json"
  LS_GEMM=$2 run kernels --precision bf16 --resume --max_steps 5
}
mine=$SCRATCH/one/options.json
case $(grep '"kernels"' "$mine") in *amx*) other=bfmmla-emulated ;; *) other=amx-bf16-emulated ;; esac
kernels "$mine" $other
grep -q "^steps up to 4 were computed by other kernels: \"cpu: .* matmul\", from here on \"cpu: .*, $other matmul\"$" "$SCRATCH/kernels.log" ||
  bad "other kernels: $(cat "$SCRATCH/kernels.log")"
kernels "$mine" ""
grep "other kernels" "$SCRATCH/kernels.log" && bad "a change is reported, but there is none"
# an instruction and its emulation have the same bits, whichever of them computed the steps before
native=$(sed -n 's/.*"kernels": ".* \([a-z0-9-]*\) matmul".*/\1/p' "$mine") && native=${native%-emulated}
sed "s/\(\"kernels\": \".*, \).* matmul\"/\1$native matmul\"/" "$mine" >"$SCRATCH/native.json"
sed "s/\(\"kernels\": \".*, \).* matmul\"/\1$native-emulated matmul\"/" "$mine" >"$SCRATCH/emulated.json"
cmp -s "$SCRATCH/native.json" "$SCRATCH/emulated.json" && bad "the kernel of options.json: $(grep '"kernels"' "$mine")"
for k in "native -emulated" "emulated $(grep -q emulated "$mine" && echo -emulated)"; do
  kernels "$SCRATCH/${k% *}.json" "$native${k#* }"
  grep "other kernels" "$SCRATCH/kernels.log" && bad "a change without other bits is reported"
  [ -e "$SCRATCH/alike" ] || cp -r "$SCRATCH/kernels" "$SCRATCH/alike"
  same "$SCRATCH/alike/epoch-1/model.safetensors" "$SCRATCH/kernels/epoch-1/model.safetensors"
done
python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); del d["computed"]["kernels"]; json.dump(d, open(sys.argv[2], "w"))' "$mine" "$SCRATCH/old.json"
kernels "$SCRATCH/old.json" $other # of a version that did not record them
grep "other kernels" "$SCRATCH/kernels.log" && bad "a change of kernels that are not known is reported"
expect 0 "^precision bf16$" "$LOCKSTEP" eval --checkpoint "$SCRATCH/one" --data "$SCRATCH/d" --precision bf16
expect 0 '"precision": *"bf16"' "$LOCKSTEP" eval --checkpoint "$SCRATCH/one" --data "$SCRATCH/d" --precision bf16 --json

expect 2 "the CPU supports only fp32 and bf16; use --precision fp32 or --precision bf16" "$LOCKSTEP" "${base[@]}" --precision fp16
expect 2 "supports only fp32; use --compute cpu" "$LOCKSTEP" "${base[@]}" --precision bf16 --compute cpu-ref
expect 2 "this CPU has .*bfmmla-emulated.* for bf16; that kernel is for --precision fp32" env LS_GEMM=plain "$LOCKSTEP" "${base[@]}" --precision bf16
expect 2 "this CPU has .*plain.* for fp32; that kernel is for --precision bf16" env LS_GEMM=bfmmla-emulated "$LOCKSTEP" "${base[@]}" --precision fp32
# doctor tries a named kernel with its own type
expect 0 "bfmmla-emulated matmul (slow: .*).*: a product differs from sums in double by [0-9.e-]* in bf16" env LS_GEMM=bfmmla-emulated "$LOCKSTEP" doctor
expect 0 "plain matmul.*: a product differs from sums in double by [0-9.e-]* in fp32, in" env LS_GEMM=plain "$LOCKSTEP" doctor
done_tests
