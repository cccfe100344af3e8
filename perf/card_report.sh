#!/usr/bin/env bash
# card_report.sh - what Lockstep does on your GPU: one command, no options, at most 15 minutes. Makes a folder that `lockstep report` reads, and an
# archive of it to attach to an issue. Nothing is sent anywhere.
# ls-bench: by name
#
#   ./run build && perf/card_report.sh
#
#   1 doctor      card, memory, driver, libraries, kernels
#   2 kernels     products, attention and kernels checked on the card, where the build has these programs (CMake's LS_TESTS)
#   3 precisions  20 steps of a small model in each precision; what the card does not have is refused, and the reason is kept
#   4 scaling     the protocol of the ZeRO scaling study (docs/REFERENCES.md) on 1, 2 and 4 cards: GPT-2 124M, 16 sequences of 512 tokens per step,
#                 fp16, ZeRO-1; 100 steps of made-up text instead of an epoch
#   5 PyTorch     the same step in PyTorch, in turns with ours, if $PYTHON has torch and sees the card
#   6 pack        takes out names of users, of hosts and of folders, checks that none is left, writes the report and the archive
#
# Exit code 1: a check failed (the archive exists and says which); 2: no GPU, or no build.
#
# Environment: OUT folder of the report [build/card-report]; BUILD [build]; PYTHON [python3]; BUDGET seconds in all [840]; DEVICE cuda, or emu: the
# emulated device with tiny shapes, to try this script without a GPU
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
stop() { echo "card_report.sh: $*" >&2; exit 2; }
[[ $# == 0 ]] || { sed -n '2,/^set /p' "${BASH_SOURCE[0]}" | sed '$d; s/^# \{0,1\}//'; exit 2; }
root=$PWD build=${BUILD:-build} out=${OUT:-build/card-report} python=${PYTHON:-python3} device=${DEVICE:-cuda} budget=${BUDGET:-840}
[[ $build == /* ]] || build=$root/$build
[[ $out == /* ]] || out=$root/$out
program=$build/lockstep begin=$SECONDS failed=0 small=()
tiny=(--model tiny --num_layers 1 --num_heads 2 --embedding_size 32 --vocab_size 300 --seq_length 8) # of the emulated device
[[ $device == cuda || $device == emu ]] || stop "DEVICE is '$device'; use cuda or emu"
[[ -x $program ]] || stop "there is no $program; run ./run build first, or set BUILD to the folder of the build"
command -v "$python" >/dev/null || stop "$python not found; set PYTHON to a Python 3"
export LS_DEVICE=cuda PYTHONDONTWRITEBYTECODE=1
if [[ $device == emu ]]; then
    export LS_PLUGIN_DIR=$build/emu LS_GEMM_TUNE=0 LS_EMU_DEVICES=${LS_EMU_DEVICES:-2}
    small=(--small)
    [[ -e $LS_PLUGIN_DIR/lockstep_cuda.so ]] || stop "DEVICE=emu: no emulated device in $build/emu; build the tests"
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/lockstep-card.XXXXXX") || exit 2
trap 'rm -rf "$work"' EXIT
trap 'exit 143' TERM INT
[[ ! -e $out || -e $out/summary.txt ]] || stop "$out exists and is not a report of a card; set OUT to another folder"
rm -rf "$out" "$out.tar.gz"
mkdir -p "$out/checks" || exit 2

left() { echo $((budget - (SECONDS - begin))); }
note() { printf '%s\n' "$*" | tee -a "$out/summary.txt"; }
# try NAME SECONDS COMMAND...: its output in checks/NAME.txt, one line in the summary; false if the command fails.
try() {
    local name=$1 limit=$2 t=$SECONDS rc
    shift 2
    (($(left) > 20)) || { note "  $name: skipped, the time is used up"; return 1; }
    ((limit <= $(left) - 10)) || limit=$(($(left) - 10))
    timeout -k 10 "$limit" "$@" >"$out/checks/$name.txt" 2>&1
    rc=$?
    ((rc == 0)) && { note "  $name: ok, $((SECONDS - t)) s"; return 0; }
    note "  $name: FAILED, exit code $rc$([[ $rc != 124 ]] || echo ' (time)') after $((SECONDS - t)) s: $(grep -v '^ *$' "$out/checks/$name.txt" | tail -n 1 | cut -c 1-200)"
    failed=1
    return 1
}
part() { note "[$1/6] $2"; }

# ids FILE COUNT VOCABULARY: tokens with some structure
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

# What the driver says of the cards; no serial numbers.
describe() {
    command -v nvidia-smi >/dev/null || { echo "nvidia-smi not found"; return 0; }
    nvidia-smi --query-gpu=index,name,compute_cap,memory.total,power.limit,driver_version,pcie.link.gen.max,pcie.link.width.max --format=csv
    nvidia-smi topo -m
}

cards() {
    local n=1
    if [[ $device == emu ]]; then n=$LS_EMU_DEVICES
    elif [[ ${CUDA_VISIBLE_DEVICES:-} ]]; then n=$(tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c .)
    elif command -v nvidia-smi >/dev/null; then n=$(nvidia-smi -L | grep -c '^GPU '); fi
    echo $((n > 0 ? n : 1))
}

do_doctor() {
    part 1 "doctor"
    describe >"$out/card.txt" 2>&1
    "$program" --version >>"$out/card.txt"
    if ! timeout 120 "$program" doctor --device cuda >"$out/checks/doctor.txt" 2>&1; then
        grep -E -A 1 '^ +(cuda|plugin|device|gpu)' "$out/checks/doctor.txt" >&2
        rm -rf "$out"
        stop "no GPU that Lockstep can use here; the lines above say why ('lockstep doctor --device cuda'), docs/troubleshooting.md what to do"
    fi
    note "  doctor: ok; cards: $(cards)"
}

do_kernels() {
    local t
    part 2 "kernels"
    for t in cuda_gemm cuda_attention cuda_kernels; do
        [[ -x $build/$t ]] || { note "  $t: not built, so not checked"; continue; }
        case $t in
        cuda_gemm) try $t 120 "$build/$t" --check ;;
        cuda_attention) try $t 120 "$build/$t" --no-time "${small[@]}" ;;
        cuda_kernels) try $t 120 "$build/$t" "${small[@]}" ;;
        esac
    done
}

do_precisions() {
    local p rc line
    local -a job=(--model tiny --vocab_size 300 --seq_length 64 --micro_batch_size_per_gpu 4 --max_steps 20 --lr 1e-3)
    [[ $device == cuda ]] || job=("${tiny[@]}" --micro_batch_size_per_gpu 8 --max_steps 6 --lr 1e-2)
    part 3 "precisions"
    ids "$work/ids.bin" 60000 300
    for p in auto fp32 fp16 bf16 fp8; do
        rm -rf "$work/run"
        timeout -k 10 90 "$program" train --device cuda --train_data_path "$work/ids.bin" --checkpoint_path "$work/run" --dropout 0 "${job[@]}" \
            --precision $p >"$out/checks/train-$p.txt" 2>&1
        rc=$?
        if ((rc == 2)); then
            note "  $p: refused: $(grep -v '^ *$' "$out/checks/train-$p.txt" | tail -n 1 | cut -c 1-200)"
        elif ((rc)); then
            note "  $p: FAILED, exit code $rc: $(tail -n 1 "$out/checks/train-$p.txt" | cut -c 1-200)"
            failed=1
        else
            line=$("$python" - "$work/run" <<'P'
import json, sys
rows = [json.loads(x) for x in open(sys.argv[1] + "/metrics.jsonl")]
used = json.load(open(sys.argv[1] + "/training_metrics.json"))["lockstep"]["precision"]
first, last = rows[0]["loss"], rows[-1]["loss"]
print(f"{'ok' if last < first else 'FAILED'}, in {used}, loss {first:.4f} -> {last:.4f}")
P
            )
            note "  $p: ${line:-FAILED, no steps}"
            [[ $line == ok* ]] || failed=1
        fi
    done
}

# The configuration of the study's runs on V100: micro-batches of 4, 16 sequences per step on any number of cards.
do_scaling() {
    local n steps=100 list=1
    n=$(cards)
    ((n < 2)) || list+=,2
    ((n < 4)) || list+=,4
    part 4 "scaling on $list cards"
    mkdir -p "$work/study/src"
    cat >"$work/study/src/deepspeed_config.json" <<'J'
{"train_batch_size": 16, "train_micro_batch_size_per_gpu": 4, "gradient_clipping": 1.0, "zero_optimization": {"stage": 1},
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "fp16": {"enabled": true, "initial_scale_power": 16},
 "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 1e-4, "warmup_num_steps": 1000}}}
J
    cd "$work/study" || return
    local most=$(($(left) - 240)) # PyTorch's part takes the rest
    ((most >= 30)) || most=$(($(left) - 20))
    ((most >= 30)) || { note "  scaling: skipped, the time is used up"; cd "$root" || return; return; }
    if [[ $device == cuda ]]; then
        ids train_small.bin $((16 * 512 * steps + 1)) 50257
        ids val_small.bin $((16 * 512 + 1)) 50257
        try scaling "$most" "$program" bench scaling --gpus $list --dataset_mode small --out_dir "$work/scaling"
    else
        ids train_small.bin 20000 300
        try scaling "$most" "$program" bench scaling -n $list --repeat 1 --steps 4 --warmup 1 --out "$work/scaling" -- --device cuda \
            --train_data_path train_small.bin --deepspeed_config src/deepspeed_config.json "${tiny[@]}"
    fi && note "$(sed -n '/^setting .*tokens/,/^[A-Z(]/{/^[a-z]/{s/^/  /;p}}' "$out/checks/scaling.txt")"
    cd "$root" || return
    find "$work/scaling" \( -name 'epoch-*' -o -name 'step-*' \) -prune -exec rm -rf {} + 2>/dev/null
    [[ ! -d $work/scaling ]] || cp -r "$work/scaling" "$out/scaling"
}

do_torch() {
    local -a words=(--cases ref_fp16 --modes eager --rounds 3 --segment-s 4 --deterministic --limit 120 --out "$work/torch")
    part 5 "PyTorch"
    [[ $device == cuda ]] || words=(--device cpu --cases dry --modes eager --rounds 1 --segment-s 0.2 --out "$work/torch")
    if ! "$python" -c 'import numpy, torch, sys; sys.exit(not (torch.cuda.is_available() or sys.argv[1] == "emu"))' "$device" 2>/dev/null; then
        note "  skipped: $python has no torch that sees the card; set PYTHON to one"
        return
    fi
    LOCKSTEP=$program try torch 220 "$python" perf/gpu_vs_torch.py "${words[@]}" || return
    # its shares of a peak are those of an H200
    "$python" - "$work/torch/gpu_vs_torch.json" "$out/torch.json" <<'P' | sed 's/^/  /' | tee -a "$out/summary.txt"
import json, sys
case = json.load(open(sys.argv[1]))["cases"][0]
rows = [{k: r.get(k) for k in ("side", "tokens_per_sec", "low", "high", "ratio", "interval_95")} for r in case["rows"]]
json.dump({k: case[k] for k in ("case", "model", "B", "A", "T", "precision")} | {"rows": rows}, open(sys.argv[2], "w"), indent=1)
for r in rows:
    print(f"{r['side']}: {r['tokens_per_sec']:,.0f} tokens/s" + (f", ours {r['ratio']:.2f} x" if r["ratio"] else ""))
P
    rm -f "$out/checks/torch.txt" # commands and folders
}

# Names of users, hosts and folders: taken out of every file, then looked for.
private() {
    "$python" - "$out" "$work" "$root" <<'P'
import getpass, json, os, pathlib, re, socket, sys
out, work, root = sys.argv[1:]
COMMON = {"root", "user", "ubuntu", "admin", "runner", "localhost", "gpu", "cuda", "host", "node", "train", "lockstep"}  # nobody's name
try:
    user = getpass.getuser()
except (KeyError, OSError):
    user = "root"
home = os.path.expanduser("~")
folders = [(os.path.realpath(p), w) for p, w in ((work, "WORK"), (out, "REPORT"), (root, "CHECKOUT"))] + [(work, "WORK"), (out, "REPORT"), (root, "CHECKOUT")]
if home not in ("/", "/root"):
    folders.append((home, "HOME"))
rules = [(re.compile(re.escape(p)), w) for p, w in sorted(folders, key=lambda x: -len(x[0]))]
for host in sorted({socket.gethostname(), socket.gethostname().split(".")[0], socket.getfqdn()} - COMMON, key=len, reverse=True):
    rules.append((re.compile(r"(?<![\w.-])" + re.escape(host) + r"(?![\w-])"), "HOST"))
if user not in COMMON:
    rules.append((re.compile(r"(?<=[/@~=])" + re.escape(user) + r"(?![\w-])|(?<![\w-])" + re.escape(user) + "(?=@)"), "USER"))
# any other folder but those of the system
rules.append((re.compile(r"(?<![\w.:/<~])/(?!(?:usr|lib|lib64|opt|etc|proc|dev|sys|bin|sbin)/)[\w.+@-]+(?:/[\w.+@-]+)*/(?=[\w.+@-])"), "PATH-"))
rules += [(re.compile(r"GPU-[0-9a-f]{8}-[0-9a-f-]+"), "GPU-ID"),
          (re.compile(r"\b(10\.\d+|192\.168|172\.(1[6-9]|2\d|3[01]))\.\d+\.\d+\b"), "ADDRESS")]
bad = 0
for path in sorted(pathlib.Path(out).rglob("*")):
    if not path.is_file():
        continue
    if path.name == "launcher_metadata.json" or path.is_symlink():  # hosts, Slurm's nodes and jobs
        path.unlink()
        continue
    try:
        text = path.read_text()
    except UnicodeDecodeError:
        path.unlink()
        continue
    if path.name == "training_metrics.json":
        run = json.loads(text)
        run.get("host", {}).update(hostname="HOST")
        run.pop("scheduler", None)
        run.get("hardware", {}).pop("cluster", None)
        text = json.dumps(run, indent=2)
    for rule, word in rules:
        text = rule.sub(word, text)
    path.write_text(text)
    for rule, word in rules:
        for hit in rule.finditer(text):
            bad += 1
            print(f"{path}: still contains {hit.group()} ({word})", file=sys.stderr)
sys.exit(bad > 0)
P
}

do_pack() {
    part 6 "pack"
    note "$((SECONDS - begin)) s; $( ((failed)) && echo 'a check FAILED' || echo 'all checks passed')"
    private || stop "the report contains private names; no archive was made"
    (cd "$(dirname "$out")" && timeout 60 "$program" report "$(basename "$out")" --no_png --out "$work/report" >"$work/report.txt" 2>&1) ||
        { echo "  lockstep report: exit code $?: $(tail -n 1 "$work/report.txt")"; failed=1; }
    [[ ! -d $work/report ]] || cp -r "$work/report" "$out/report"
    private || stop "the report contains private names; no archive was made"
    tar -C "$(dirname "$out")" --owner=0 --group=0 --numeric-owner -czf "$out.tar.gz" "$(basename "$out")" || stop "cannot write $out.tar.gz"
    echo "wrote $out and $out.tar.gz ($(du -k "$out.tar.gz" | cut -f 1) KiB): attach the archive to an issue"
}

do_doctor
do_kernels
do_precisions
do_scaling
do_torch
do_pack
exit $failed
