#!/usr/bin/env bash
# gpu_session.sh - all checks and measurements that need a GPU, in calls of limited length, the most important first.
#
#   perf/gpu_session.sh build                     builds the program, the plugin, and the check and timing programs
#   perf/gpu_session.sh smoke                     doctor; products, attention and kernels checked on the device; 20 steps in every precision
#   perf/gpu_session.sh cards                     kernels of older cards through the driver's compiler: plugins of PTX of 7.0, 7.5, 8.0 and 8.9 alone: kernel and
#                                                 attention checks, GPT-2 124M in fp16 beside fp32, ddp, zero1, kill and resume over NCCL: same bits
#   perf/gpu_session.sh sanitize                  compute-sanitizer memcheck, racecheck, initcheck over the kernel checks
#   perf/gpu_session.sh determinism               compares the bits of two runs, and of 1, 2, 4 workers on one GPU with every strategy; cost of determinism
#   perf/gpu_session.sh speed [CASE...]           lockstep and PyTorch, alternating; checks the bars (gpu_vs_torch.py)
#   perf/gpu_session.sh parity                    50 steps and gradients against the CPU; 2,000 steps against PyTorch
#   perf/gpu_session.sh fp32                      fp32 products by the library and by our kernel (LS_GEMM_FP32): errors, times, losses, speed beside PyTorch
#   perf/gpu_session.sh profile [b64|b16|ref]     kernel times by operation, with the roofline (b64)
#   perf/gpu_session.sh memory                    planned and allocated, by part; gpt2-xl with and without recomputation
#   perf/gpu_session.sh offload                   gpt2-xl B8 T1024 zero1 with and without --offload_optimizer cpu: memory, throughput, bars (gpu_offload.py)
#   perf/gpu_session.sh verify [staged|nccl]      verify --device cuda -n 1,2,4 (staged), and --comm nccl -n 2,4 (nccl); both without an argument
#   perf/gpu_session.sh nccl [PART]               several ranks on one GPU over NCCL 2.30 or later (gpu_nccl.py); without PART all of these:
#       tiny      2 and 4 ranks: every strategy, every schedule, tp 2 (also by rows), hybrids, deterministic and not; under -n, mpirun and
#                 torchrun's variables, over NCCL's sockets; weights bit for bit those of one worker (tp, not deterministic: losses near)
#       full      the layouts with GPT-2 124M (T512, bf16), memory planned and allocated
#       steps     GPT-2 124M on 2 ranks, ddp and zero1 to zero3: 200 losses bit for bit, memory planned and allocated
#       faults    kill -9, SIGSTOP, SIGTERM of a rank or a run, a rank that is not reaped, NCCL connections closed during a step: all ranks end
#                 within 30 s, the rank is named, nothing is left over, the run resumes with the same bits
#       ends      20 starts and ends of each pipeline schedule
#       rows      only the cases of the eight defects found with real NCCL: 1 staged zero3 of 124M, 2 124M over NCCL, 3 one worker with several
#                 micro-batches, 4 gpipe, 5 and 8 pipelines that never end, 6 illegal access, 7 a stopped rank (also rows of the summary)
#
# Several parts can be given: `gpu_session.sh build smoke`. Each prints a short summary (lines that begin with "==") and writes
# NAME.txt (summary), NAME.log (all output) and NAME.tar.gz (files) in the results folder (nccl-PART.txt …, verify-PART.txt … with a part). Exit code 1: a check failed.
#
# Environment
#   OUT            results folder [build/gpu]                BUILD          build folder [build]
#   CMAKE_ARGS     more arguments for cmake; for a folder of headers and libraries in place of installed ones:
#                  "-DLS_TESTS=OFF -DCMAKE_PREFIX_PATH=DIR/usr -DCMAKE_LIBRARY_ARCHITECTURE=x86_64-linux-gnu -DLS_BLAS=openblas"
#   SYSROOT        DIR of the line above: its libraries are also found at run time
#   PYTHON         Python with torch [python3]               BUDGET         seconds of one call [540]
#   TEXT           files or folders of real text, for parity TOKENIZER, VOCAB_DIR   for it [bytes]; TORCH_MODE [compile]
#   TRAIN_ARGS     more options for every `lockstep train --device cuda`
#   ARCHS          of cards [70 75 80 89]; BUILD-ARCH is the build folder of each, made if it does not exist. nvcc 13 cannot compile for 7.0: that
#                  folder is made by perf/ptx70.sh, or left out with a warning
#   MODES, ROUNDS, SEGMENT, VARIANTS   of gpu_vs_torch.py [compile,eager 5 2; variants: deterministic,fp8; none]
#   DEVICE         cuda, or emu: the emulated device with small shapes, to try this script without a GPU
#   JOBS, RANKS    cases of nccl at the same time [4] and their ranks together [4]; at most FULL_JOBS of them with GPT-2 124M [1]; faults: 4 cases.
#                  An H200 refused processes ("busy or unavailable", "no memory") as soon as eight shared it through MPS
#   MPS            0: do not start NVIDIA's MPS for nccl and verify. With it, processes that share the GPU run at the same time; without it they
#                  take turns of some milliseconds, and a sum of two ranks takes ten times as long. Faults are always tried without it.
#   COMM           of nccl: nccl, or local: the same cases through the host's memory [nccl; emu without its stand-in for NCCL: local]
#   ONLY           of nccl: cases whose names match this expression; LIMIT: seconds of a case, at most [75; 124M: 200; steps: 420]
#   NCCL 2.30 is named at build time (CMAKE_ARGS=-DLS_NCCL_ROOT=DIR with DIR/include/nccl.h and DIR/lib) and found at run time by
#   LD_LIBRARY_PATH=DIR/lib; nccl and verify set NCCL_MULTI_RANK_GPU_ENABLE=1
# ls-bench: by name
set -uo pipefail
usage() { sed -n '2,/^# ls-bench/p' "${BASH_SOURCE[0]}" | sed '$d; s/^# \{0,1\}//'; }
case ${1:-} in
-h | --help | help) usage; exit 0 ;;
'') usage >&2; exit 2 ;;
esac
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
out=${OUT:-build/gpu} build=${BUILD:-build} python=${PYTHON:-python3} device=${DEVICE:-cuda} budget=${BUDGET:-540}
export LOCKSTEP=$PWD/$build/lockstep PYTHON=$python PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
[[ $build != /* ]] || LOCKSTEP=$build/lockstep
if [[ ${SYSROOT:-} ]]; then
    for d in "$SYSROOT"/usr/lib/*-linux-gnu "$SYSROOT"/usr/lib/*-linux-gnu/openblas-pthread; do
        [[ ! -d $d ]] || LD_LIBRARY_PATH=$(cd "$d" && pwd)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    done
    export LD_LIBRARY_PATH
fi
read -r -a more <<<"${TRAIN_ARGS:-}"
begin=$SECONDS small=()
if [[ $device == emu ]]; then
    LS_PLUGIN_DIR=$(dirname "$LOCKSTEP")/emu
    export LS_PLUGIN_DIR LS_GEMM_TUNE=${LS_GEMM_TUNE:-0}
    small=(--small)
fi
mkdir -p "$out"
out=$(cd "$out" && pwd)

left() { echo $((budget - (SECONDS - begin))); }
note() { printf '== %s\n' "$*" | tee -a "$out/$part.txt"; }
bad() { note "FAILED: $*"; failed=1; }

# try NAME SECONDS COMMAND...: writes the output to the folder of the part and one summary line; false if the command fails.
try() {
    local name=$1 limit=$2 t=$SECONDS rc
    shift 2
    (($(left) > 5)) || { note "$name: skipped, time limit reached"; failed=1; return 1; }
    ((limit <= $(left))) || limit=$(left)
    printf '\n-- %s: %s\n' "$name" "$*"
    if declare -F "$1" >/dev/null; then "$@" >"$dir/$name.out" 2>&1; else timeout -k 10 "$limit" "$@" >"$dir/$name.out" 2>&1; fi
    rc=$?
    tail -n "${TAIL:-6}" "$dir/$name.out"
    ((rc == 0)) && { note "$name: ok, $((SECONDS - t)) s"; return 0; }
    bad "$name: exit code $rc after $((SECONDS - t)) s$([[ $rc -ne 124 ]] || echo ' (time)'): $(tail -n 1 "$dir/$name.out" | cut -c 1-200)"
    return 1
}

# ids FILE COUNT VOCABULARY
ids() {
    "$python" - "$@" <<'P'
import random, struct, sys
path, n, vocab = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
r = random.Random(1)
words = [[r.randrange(vocab) for _ in range(r.randrange(2, 7))] for _ in range(200)]
out = []
while len(out) < n:
    out += r.choice(words)
open(path, "wb").write(struct.pack(f"<{n}H", *out[:n]))
P
}

# train FOLDER [OPTIONS...]: on the device, inside the limit of `try`
train() {
    local run=$1
    shift
    rm -rf "$run"
    timeout -k 10 "${limit:-120}" "$LOCKSTEP" train --device cuda --train_data_path "$dir/ids.bin" --checkpoint_path "$run" --dropout 0 \
        "${more[@]}" "$@"
}

tool() { [[ -x $build/$1 ]] && echo "$build/$1"; }

# ---- the parts ------------------------------------------------------------------------------------------------------

do_build() {
    local t known
    read -r -a words <<<"${CMAKE_ARGS:-}"
    [[ $device == emu || ${CMAKE_ARGS:-} == *LS_CUDA=* ]] || words+=(-DLS_CUDA=ON)
    try configure 120 cmake -G Ninja -S . -B "$build" -DCMAKE_BUILD_TYPE=Release "${words[@]}" || return
    local targets=(lockstep)
    local -a wanted=(lockstep_cuda lockstep_nccl lockstep_mpi cuda_gemm cuda_attention cuda_kernels device_cuda_gemm_f32 device_cuda_generate)
    [[ $device != emu ]] || wanted=(lockstep_cuda_emu fake_nccl_plugin)
    known=$(ninja -C "$build" -t targets all) || { bad "ninja cannot list its targets"; return; }
    for t in "${wanted[@]}"; do
        if grep -q "^$t: " <<<"$known"; then targets+=("$t"); else note "no target $t"; fi
    done
    try compile "$(left)" ninja -C "$build" "${targets[@]}" || return
    note "built ${targets[*]}; $("$LOCKSTEP" --version 2>/dev/null | head -n 1)"
}

do_smoke() {
    local p t
    TAIL=30 try doctor 120 "$LOCKSTEP" doctor --device cuda
    for t in cuda_gemm cuda_attention cuda_kernels; do
        [[ $(tool $t) ]] || { note "$t is not built: its checks are skipped"; continue; }
        case $t in
        cuda_gemm) try $t 150 "$build/$t" --check ;;
        cuda_attention) try $t 120 "$build/$t" --no-time "${small[@]}" ;;
        cuda_kernels) try $t 120 "$build/$t" "${small[@]}" ;;
        esac
    done
    ids "$dir/ids.bin" 60000 300
    local -a job=(--model tiny --vocab_size 300 --seq_length 64 --micro_batch_size_per_gpu 4 --max_steps 20 --lr 1e-3)
    [[ $device == cuda ]] || job=(--model tiny --num_layers 1 --vocab_size 300 --seq_length 16 --micro_batch_size_per_gpu 2 --max_steps 5 --lr 1e-3)
    for p in fp32 bf16 fp16 fp8; do
        try "train-$p" 120 train "$dir/run-$p" "${job[@]}" --precision $p || continue
        "$python" - "$dir/run-$p/metrics.jsonl" <<'P' || bad "train-$p: the loss does not decrease"
import json, sys
rows = [json.loads(x) for x in open(sys.argv[1])]
print(f"loss {rows[0]['loss']:.4f} -> {rows[-1]['loss']:.4f}, {rows[-1]['tokens_per_sec']:,.0f} tokens/s")
sys.exit(not rows[-1]["loss"] < rows[0]["loss"])
P
    done
    try graphs-off 120 env LS_CUDA_GRAPHS=0 "$LOCKSTEP" train --device cuda --train_data_path "$dir/ids.bin" --checkpoint_path "$dir/run-plain" \
        --dropout 0 "${job[@]}" --precision bf16 "${more[@]}" &&
        same "graphs on and off" "$dir/run-bf16" "$dir/run-plain"
}

# cards_build ARCH: the plugin and the check programs with PTX of ARCH alone, in $build-ARCH
cards_build() {
    local at=$build-$1
    [[ ! -e $at/lockstep_cuda.so ]] || { note "$1: $at exists"; return; }
    [[ $1 != 70 ]] || { note "70: no $at (perf/ptx70.sh makes it): left out"; failed=1; return 1; }
    read -r -a words <<<"${CMAKE_ARGS:-}"
    try "build-$1" "$(left)" bash -c 'cmake -G Ninja -S . -B "$0" -DCMAKE_BUILD_TYPE=Release -DLS_CUDA=ON "${@:2}" -DLS_CUDA_ARCH="$1-virtual" >/dev/null &&
        ninja -C "$0" lockstep_cuda cuda_attention cuda_kernels' "$at" "$1" "${words[@]}"
}

# killed FOLDER STEPS [OPTIONS...]: a training that is killed after STEPS steps, then resumed
killed() {
    local run=$1 steps=$2 pid
    shift 2
    rm -rf "$run"
    setsid "$LOCKSTEP" train --device cuda --train_data_path "$dir/ids.bin" --checkpoint_path "$run" --dropout 0 "${more[@]}" "$@" &
    pid=$!
    while kill -0 $pid 2>/dev/null && { [[ ! -e $run/metrics.jsonl ]] || (($(grep -c '^{"step"' "$run/metrics.jsonl") < steps)); }; do sleep 0.05; done
    kill -9 -- -$pid || { echo "it ended before step $steps"; return 1; }
    wait $pid
    timeout -k 10 120 "$LOCKSTEP" train --device cuda --resume "$run"
}

cards_train() {
    local a=$1
    local -a job=(--model gpt2 --vocab_size 50257 --seq_length 512 --micro_batch_size_per_gpu 4 --lr 1e-4) few
    [[ $device == cuda ]] || job=(--model tiny --num_layers 1 --vocab_size 300 --seq_length 16 --micro_batch_size_per_gpu 2 --lr 1e-3)
    for p in fp32 fp16; do
        try "$a-$p" 150 train "$dir/$p" "${job[@]}" --precision $p --max_steps 50 --save_every 0 || return
    done
    "$python" - "$dir/fp32/metrics.jsonl" "$dir/fp16/metrics.jsonl" <<'P' >"$dir/$a-loss.out" || bad "$a: the losses of fp16 and fp32 are apart"
import json, sys
a, b = ([json.loads(x)["loss"] for x in open(p) if x.startswith('{"step"')] for p in sys.argv[1:])
apart = max(abs(x - y) for x, y in zip(a, b))
print(f"fp16 beside fp32, {len(a)} steps: losses {a[0]:.4f} -> {a[-1]:.4f} and {b[-1]:.4f}, at most {apart:.4f} apart")
sys.exit(not (len(a) == len(b) == 50 and apart < 0.02 and a[-1] < a[0]))
P
    note "$a: $(cat "$dir/$a-loss.out")"
    few=("${job[@]}" --precision fp16 --grad_accum_steps 2 --max_steps 12 --save_every 6)
    local -a two=("${job[@]}" --precision fp16 -n 2 --comm "${COMM:-nccl}" --max_steps 12 --save_every 6)
    try "$a-one" 120 train "$dir/one" "${few[@]}" || return
    for p in ddp zero1; do
        try "$a-$p" 120 train "$dir/w" "${two[@]}" --strategy $p && same "$a: $p on 2 ranks" "$dir/one" "$dir/w"
    done
    try "$a-killed" 200 killed "$dir/w" 8 "${two[@]}" --strategy zero1 && same "$a: killed and resumed" "$dir/one" "$dir/w"
    rm -rf "$dir/w" "$dir/one" "$dir/fp16" "$dir/fp32"
}

do_cards() {
    local a
    ids "$dir/ids.bin" 300000 "$([[ $device == cuda ]] && echo 50000 || echo 300)"
    export LS_ATTENTION=flash NCCL_MULTI_RANK_GPU_ENABLE=1 # cuDNN has kernels of its own for this card
    mps on
    for a in ${ARCHS:-70 75 80 89}; do
        if [[ $device == cuda ]]; then
            cards_build "$a" || continue
            export LS_PLUGIN_DIR=$PWD/$build-$a
            [[ $build != /* ]] || LS_PLUGIN_DIR=$build-$a
            cp -n "$build"/lockstep_nccl.so "$LS_PLUGIN_DIR" 2>/dev/null
            try "$a-cuda_attention" 150 "$build-$a/cuda_attention" --no-time
            try "$a-cuda_kernels" 150 "$build-$a/cuda_kernels"
        else
            export LS_EMU_GPU=h100 LS_EMU_CODE=$a
        fi
        TAIL=12 try "$a-doctor" 60 "$LOCKSTEP" doctor --device cuda
        cards_train "$a"
    done
    mps off
    unset LS_ATTENTION NCCL_MULTI_RANK_GPU_ENABLE LS_EMU_GPU LS_EMU_CODE LS_PLUGIN_DIR
}

do_sanitize() {
    local t kind
    local -a sane=(compute-sanitizer --error-exitcode 9 --print-limit 20)
    command -v compute-sanitizer >/dev/null || { note "no compute-sanitizer in PATH"; failed=1; return; }
    for kind in memcheck racecheck initcheck; do
        for t in cuda_kernels cuda_attention; do
            [[ $(tool $t) ]] || { note "$t is not built"; continue; }
            local -a args=(--small)
            [[ $t != cuda_attention ]] || args+=(--no-time)
            # cuDNN's kernels wait at barriers that racecheck does not follow: it calls every exchange of theirs a race
            [[ $t$kind != cuda_attentionracecheck ]] || args+=(--no-cudnn)
            try "$kind-$t" 150 "${sane[@]}" --tool $kind "$build/$t" "${args[@]}"
        done
    done
    if [[ $(tool cuda_gemm) ]]; then try memcheck-cuda_gemm 150 "${sane[@]}" --tool memcheck "$build/cuda_gemm" --check --batch 2 --seq 64; fi
}

# same LABEL A B: the newest checkpoints of two runs
same() {
    local a b
    a=$(find "$2" -path '*epoch-*' -name model.safetensors | sort | tail -n 1)
    b=$(find "$3" -path '*epoch-*' -name model.safetensors | sort | tail -n 1)
    if [[ -s $a && -s $b ]] && cmp -s "$a" "$b"; then note "$1: the same bits"; else bad "$1: weights differ"; fi
}

do_determinism() {
    local s n
    ids "$dir/ids.bin" 200000 300
    local -a job=(--model tiny --vocab_size 300 --seq_length 64 --micro_batch_size_per_gpu 2 --global_batch_size 16 --max_steps 8 --precision bf16)
    [[ $device == cuda ]] || job=(--model tiny --num_layers 2 --vocab_size 300 --seq_length 8 --micro_batch_size_per_gpu 1 --global_batch_size 4
        --max_steps 2 --precision bf16)
    try once 120 train "$dir/a" "${job[@]}" || return
    try again 120 train "$dir/b" "${job[@]}" && same "two runs" "$dir/a" "$dir/b"
    if [[ $device == cuda ]]; then
        local -a full=(--model gpt2 --vocab_size 300 --seq_length 512 --micro_batch_size_per_gpu 4 --grad_accum_steps 2 --max_steps 5 --precision bf16)
        try gpt2-once 120 train "$dir/c" "${full[@]}" && try gpt2-again 120 train "$dir/d" "${full[@]}" && same "two runs of gpt2" "$dir/c" "$dir/d"
        rm -rf "$dir/c" "$dir/d"
    fi
    for n in 2 4; do
        for s in ddp zero1 zero2 zero3; do
            try "$s-$n" 120 train "$dir/w" "${job[@]}" -n $n --strategy $s && same "$s on $n workers" "$dir/a" "$dir/w"
        done
        try "pp-$n" 120 train "$dir/w" "${job[@]}" -n $n --pp $n && same "a pipeline of $n" "$dir/a" "$dir/w"
    done
    rm -rf "$dir/w"
    if "$LOCKSTEP" verify --help | grep -q -- --device; then TAIL=12 try verify 240 "$LOCKSTEP" verify --device cuda -n 1,2,4 --jobs "${JOBS:-6}"; fi
    if [[ $device == cuda ]] && (($(left) > 60)); then # the price: the same case with sums in one order and without
        try price-free 120 "$python" perf/gpu_vs_torch.py --cases b64 --modes none --rounds 3 --out "$dir/free"
        try price-deterministic 120 "$python" perf/gpu_vs_torch.py --cases b64 --modes none --rounds 3 --deterministic --out "$dir/deterministic"
        "$python" - "$dir" <<'P' | while IFS= read -r line; do note "$line"; done
import json, sys
try:
    a, b = (json.load(open(f"{sys.argv[1]}/{d}/gpu_vs_torch.json"))["cases"][0]["rows"][0]["tokens_per_sec"] for d in ("free", "deterministic"))
    print(f"price of determinism, b64: {a:,.0f} without, {b:,.0f} tokens/s with it: {100 * (1 - b / a):.1f} %")
except (OSError, IndexError) as why:
    print(f"no price: {why}")
P
    fi
}

do_speed() {
    local cases=${1:-b64,b16,ref_bf16,ref_fp16,tf32,fp32,xl}
    local -a args=(--cases "$cases" --modes "${MODES:-compile,eager}" --rounds "${ROUNDS:-5}" --segment-s "${SEGMENT:-2}" --bars --out "$dir"
        --budget-s $(($(left) - 120)) --ours-args "${TRAIN_ARGS:-}" --variants "${VARIANTS:-}")
    [[ $device == cuda ]] || args+=(--device cpu --cases dry --modes eager)
    TAIL=60 try gpu_vs_torch "$(left)" "$python" perf/gpu_vs_torch.py "${args[@]}"
    [[ ! -s $dir/gpu_vs_torch.md ]] || cp "$dir/gpu_vs_torch.md" "$out/speed.md"
    [[ ! -s $dir/gpu_vs_torch.json ]] || cp "$dir/gpu_vs_torch.json" "$out/speed.json"
}

do_parity() {
    local -a args=(--out "$dir" --ours-args "${TRAIN_ARGS:-}")
    [[ $device == cuda ]] || args+=(--dry)
    if [[ ${TEXT:-} ]]; then
        read -r -a text <<<"$TEXT"
        args+=(--text "${text[@]}" --tokenizer "${TOKENIZER:-bytes}")
        [[ ! ${VOCAB_DIR:-} ]] || args+=(--vocab_dir "$VOCAB_DIR")
    fi
    TAIL=20 try against-cpu "$(left)" "$python" perf/gpu_parity.py losses gradients --precisions "${PRECISIONS:-bf16,fp32}" "${args[@]}"
    [[ ! -s $dir/gpu_parity.json ]] || mv "$dir/gpu_parity.json" "$dir/against_cpu.json"
    if [[ ${TEXT:-} || $device != cuda ]]; then
        TAIL=12 try against-torch "$(left)" "$python" perf/gpu_parity.py torch --mode "${TORCH_MODE:-compile}" --batch "${BATCH:-16}" --seq "${SEQ:-256}" "${args[@]}"
    else
        note "TEXT is not set: the comparison of 2,000 steps with PyTorch is skipped"
    fi
}

do_fp32() {
    local how t=device_cuda_gemm_f32
    local -a job=(--model tiny --num_layers 1 --vocab_size 300 --seq_length 16 --micro_batch_size_per_gpu 2 --max_steps 3 --lr 1e-3 --precision fp32)
    if [[ $(tool $t) ]]; then try $t 120 "$build/$t"; else note "$t is not built (it needs cmocka)"; fi
    if [[ $(tool cuda_gemm) ]]; then
        try check 120 "$build/cuda_gemm" --check --type f32 --deterministic
        for how in 64 4 16; do TAIL=30 try "compare-b$how" 120 "$build/cuda_gemm" --fp32 --deterministic --batch $how; done
    else
        note "cuda_gemm is not built: products are not compared"
    fi
    ids "$dir/ids.bin" 60000 300
    for how in library tensor; do
        LS_GEMM_FP32=$how try "train-$how" 120 train "$dir/run-$how" "${job[@]}"
    done
    "$python" - "$dir"/run-{library,tensor}/metrics.jsonl <<'P' || bad "losses or norms of both differ by more than 1e-5"
import json, sys
a, b = ([json.loads(x) for x in open(p)] for p in sys.argv[1:])
apart = max(abs(x[k] - y[k]) / abs(x[k]) for x, y in zip(a, b) for k in ("loss", "grad_norm"))
print(f"losses and norms of {len(a)} steps: {apart:.1e} apart")
sys.exit(not (len(a) == len(b) > 0 and apart < 1e-5))
P
    [[ $device == cuda ]] || return
    for how in library tensor; do
        LS_GEMM_FP32=$how TAIL=20 try "speed-$how" "$(left)" "$python" perf/gpu_vs_torch.py --cases fp32 --modes "${MODES:-compile,eager}" \
            --rounds "${ROUNDS:-5}" --segment-s "${SEGMENT:-2}" --out "$dir/$how" --ours-args "${TRAIN_ARGS:-}"
    done
}

do_profile() {
    local -a job=(--model gpt2 --precision bf16 --vocab_size 50257 --max_steps 12)
    case ${1:-b64} in
    b16) job+=(--seq_length 512 --micro_batch_size_per_gpu 16) ;;
    ref) job+=(--seq_length 512 --micro_batch_size_per_gpu 4 --grad_accum_steps 4) ;;
    *) job+=(--seq_length 1024 --micro_batch_size_per_gpu 64) ;;
    esac
    ids "$dir/ids.bin" 2000000 50000
    [[ $device == cuda ]] || { ids "$dir/ids.bin" 40000 300; job=(--model tiny --vocab_size 300 --seq_length 64 --micro_batch_size_per_gpu 2 --max_steps 3); }
    # products are chosen once: not in the profile
    try chosen 120 "$LOCKSTEP" train --device cuda --train_data_path "$dir/ids.bin" --checkpoint_path "$dir/first" --dropout 0 "${job[@]}" "${more[@]}" \
        --max_steps 2 || return
    rm -rf "$dir/first"
    try traced 180 "$LOCKSTEP" profile -- train --device cuda --train_data_path "$dir/ids.bin" --checkpoint_path "$dir/run" --dropout 0 \
        "${job[@]}" "${more[@]}" || return
    rm -rf "$dir"/run/epoch-*
    "$python" - "$dir/run/profiles/profile_summary.json" <<'P' | while IFS= read -r line; do note "$line"; done
import json, sys
s = json.load(open(sys.argv[1]))["lockstep"]
steps = max(1, s["per_rank"][0]["steps"])
rows = s.get("device_operations", [])
print(f"{len(s.get('device_kernels', []))} kernels, {len(rows)} operations in {steps} steps, ms per step:")
for r in rows[:14]:
    print(f"  {r['name']:<20} {1e3 * r['total_sec'] / steps:9.3f}  {100 * r['share']:5.1f} %  {r['calls'] / steps:6.1f} calls")
P
    [[ $device == cuda && ${1:-b64} == b64 ]] || return 0
    TAIL=40 try roofline "$(left)" "$python" perf/gpu_roofline.py --tools "$build" --profile "$dir/run" --out "$dir"
    [[ ! -s $dir/gpu_roofline.md ]] || cp "$dir/gpu_roofline.md" "$out/roofline.md"
    gzip -f "$dir/run/profiles/trace.json" 2>/dev/null
}

do_memory() {
    local label
    ids "$dir/ids.bin" 400000 50000
    [[ $device == cuda ]] || { note "needs a device"; return; }
    for label in "gpt2 64" "gpt2-xl 8" "gpt2-xl 8 --recompute"; do
        read -r -a w <<<"$label"
        try "memory-${label// /_}" 150 train "$dir/run" --model "${w[0]}" --micro_batch_size_per_gpu "${w[1]}" "${w[@]:2}" --seq_length 1024 --max_steps 2 --verbose \
            --precision bf16 --vocab_size 50257 && grep -hE "GiB|MiB" "$dir/memory-${label// /_}.out" | head -n 14 | while IFS= read -r line; do note "  $line"; done
        rm -rf "$dir/run"
    done
}

do_offload() {
    local -a args=(--lockstep "$LOCKSTEP" --rounds "${ROUNDS:-2}" --limit "$(left)")
    [[ $device == cuda ]] || args+=(--model tiny --vocab 300 --micro 1 --seq 16 --steps 5 --no-bars)
    TAIL=12 try gpu_offload "$(left)" "$python" perf/gpu_offload.py "${args[@]}"
}

# mps on|off: processes share the GPU through the NVIDIA multi-process service, if available
mps() {
    local tool
    tool=$(command -v nvidia-cuda-mps-control) || tool=/usr/local/nvidia/bin/nvidia-cuda-mps-control
    if [[ $1 == on && ${CUDA_MPS_PIPE_DIRECTORY:-} ]]; then
        note "the GPU is shared through the MPS of $CUDA_MPS_PIPE_DIRECTORY"
    elif [[ $1 == on ]]; then
        export CUDA_MPS_PIPE_DIRECTORY=$dir/mps CUDA_MPS_LOG_DIRECTORY=$dir/mps-log
        mkdir -p "$dir/mps" "$dir/mps-log"
        [[ $device == cuda && ${MPS:-1} != 0 && -x $tool ]] && "$tool" -d && { note "the GPU is shared through MPS"; return; }
        unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
    elif [[ ${CUDA_MPS_PIPE_DIRECTORY:-} == "$dir/mps" ]]; then
        echo quit | "$tool" >/dev/null 2>&1
        unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
    fi
}

# verify_as NAME SECONDS OPTIONS...: the table of layouts, its last line in the summary
verify_as() {
    local name=$1 limit=$2
    shift 2
    TAIL=12 try "$name" "$limit" "$LOCKSTEP" verify "$@"
    note "$name: $(grep -E ' layouts identical' "$dir/$name.out" | tail -n 1)"
    cp "$dir/$name.out" "$out/$name.rows.txt" 2>/dev/null
}

do_verify() {
    local what=${1:-staged nccl}
    [[ " staged nccl " == *" $what "* || ! ${1:-} ]] || { bad "verify has no part $1; use staged or nccl"; return; }
    # the emulated device would take an hour for all layouts: there the CPU shows that this part works
    [[ $device == cuda ]] || { note "DEVICE=emu: on the CPU, as the emulated device is too slow"; verify_as verify-staged 300 --device cpu -n 1,2 --steps 1; return; }
    mps on
    [[ $what != *staged* ]] || (unset NCCL_MULTI_RANK_GPU_ENABLE && verify_as verify-staged "$(left)" --device cuda -n 1,2,4; exit $failed) || failed=1
    [[ $what != *nccl* ]] || NCCL_MULTI_RANK_GPU_ENABLE=1 verify_as verify-nccl "$(left)" --device cuda --comm nccl -n 2,4
    mps off
}

do_nccl() {
    local comm=${COMM:-nccl} plugins=${LS_PLUGIN_DIR:-} line
    if [[ $device == emu ]]; then
        plugins=$(dirname "$LOCKSTEP")/emu_nccl
        [[ $comm == nccl && -e $plugins/lockstep_nccl.so ]] || comm=local plugins=$LS_PLUGIN_DIR
    fi
    echo "-- gpu_nccl.py ${1:-all parts} over $comm"
    mps on
    env ${plugins:+LS_PLUGIN_DIR="$plugins"} COMM="$comm" DEVICE="$device" NCCL_MULTI_RANK_GPU_ENABLE=1 \
        "$python" perf/gpu_nccl.py ${1:+"$1"} --work "$dir/nccl" --budget $(($(left) - 15)) ${ONLY:+--only "$ONLY"} 2>&1 |
        while IFS= read -r line; do if [[ $line == "== "* ]]; then note "${line#== }"; else echo "$line"; fi; done
    ((PIPESTATUS[0] == 0)) || bad "nccl ${1:-}: see the lines above"
    mps off
    rm -rf "$dir"/nccl/one-* # what the cases are compared with
}

# ---- the session ----------------------------------------------------------------------------------------------------

[[ $device == cuda || $device == emu ]] || { echo "gpu_session.sh: DEVICE is '$device'; use cuda or emu" >&2; exit 2; }
worst=0 ran=()
while (($#)); do
    part=$1 failed=0 arg=
    shift
    declare -F "do_$part" >/dev/null || { echo "gpu_session.sh: unknown part $part" >&2; exit 2; }
    # `verify nccl` is verify over NCCL; nccl's own parts follow it as `nccl tiny`
    if [[ ($part == speed || $part == profile || $part == nccl || $part == verify) && $# -gt 0 ]] &&
        { ! declare -F "do_$1" >/dev/null || [[ $part$1 == verifynccl && ! ${2:-} =~ ^(tiny|full|steps|faults|ends|rows)$ ]]; }; then
        arg=$1
        shift
    fi
    dir=$(mktemp -d "${TMPDIR:-/tmp}/lockstep-session.XXXXXX") body=do_$part
    [[ ! $arg || ($part != nccl && $part != verify) ]] || part+=-$arg # files of their own
    : >"$out/$part.txt"
    "$body" ${arg:+"$arg"} > >(tee "$out/$part.log") 2>&1
    sleep 0.2 # the copy of the output
    find "$dir" \( -name '*.safetensors' -o -name 'ids*.bin' \) -delete
    tar -C "$dir" -czf "$out/$part.tar.gz" . 2>/dev/null
    rm -rf "$dir"
    ((failed == 0)) || worst=1
    ran+=("$out/$part.txt")
done
printf '\n'
cat "${ran[@]}"
printf '== %s s of %s used\n' $((SECONDS - begin)) "$budget"
exit $worst
