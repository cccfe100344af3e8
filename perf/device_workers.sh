#!/usr/bin/env bash
# device_workers.sh - all measurements with several workers that need 16 cores, within one wall-time budget.
# ls-bench: by name
#
#   perf/device_workers.sh [FOLDER]     FOLDER (or $OUT, or build/workers): one .json and .txt file per part
#
#   a    GPT-2 124M, T512, global batch 16: ddp against PyTorch DDP (gloo) on 8, 4, 2 workers; 8 workers x 2 threads against 8 x one
#        worker, with independent copies and the STREAM triad for reference                                       56 % of the budget
#   bc   the five strategies on 8 workers, and ZeRO-2 and ZeRO-3 of DeepSpeed if build-deepspeed exists            34 %
#   d    all-reduce of 500 MB on 2 and 4 workers, and of Open MPI                                                  10 %
#   e    the cost of determinism, ddp on 2 and 4 workers                                (only with PARTS=e; all of the budget)
#
# Parts run in this order; unused time goes to the next part; a part that runs out of time prints its results so far. A single
# part (PARTS=bc) has all of the budget except the shares of later parts. Settings by environment: BUDGET
# (seconds in all, 540), PARTS ("a bc d"), PYTHON (with torch and numpy), LOCKSTEP (the program; triad and allreduce are
# in its folder), BUILD (a command that builds them, run first, while the C++ extensions of DeepSpeed compile); to try it on a small
# machine, MODEL=tiny WORKERS="2" MB=20.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
begin=$SECONDS
out=${1:-${OUT:-build/workers}}
budget=${BUDGET:-540} python=${PYTHON:-python3} model=${MODEL:-gpt2} mb=${MB:-500}
read -r -a counts <<<"${WORKERS:-8 4 2}"
most=${counts[0]}
list=$(IFS=,; echo "${counts[*]}")
export LOCKSTEP=${LOCKSTEP:-$PWD/build/lockstep} PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
folder=${LS_DEEPSPEED:-$PWD/build-deepspeed}
mkdir -p "$out"

left() { echo $((budget - (SECONDS - begin))); }
but() { echo $(($(left) - budget * $1 / 100)); } # seconds for a part: all that is left but PERCENT, which later ones need
part() { # NAME COMMAND...
    local name=$1 t=$SECONDS
    shift
    printf '\n== %s (%s s left): %s\n' "$name" "$(left)" "$*"
    "$@" --out "$out/$name.json" 2>&1 | tee "$out/$name.txt"
    printf '== %s took %s s, exit code %s\n' "$name" $((SECONDS - t)) "${PIPESTATUS[0]}"
}
wanted() { [[ " ${PARTS:-a bc d} " == *" $1 "* ]]; }

compile=
if wanted bc && [[ -d $folder ]]; then # while the build goes on; nothing is measured meanwhile
    PYTHONPATH=$folder${PYTHONPATH:+:$PYTHONPATH} PATH=$folder/bin:$PATH RANK=0 WORLD_SIZE=1 \
        TORCH_EXTENSIONS_DIR=${TORCH_EXTENSIONS_DIR:-$folder/torch_extensions} timeout 120 "$python" perf/torch_workers.py \
        --peer zero2 --meet - --data - --build-only >"$out/deepspeed.txt" 2>&1 &
    compile=$!
fi
if [[ ${BUILD:-} ]]; then
    bash -c "$BUILD" >"$out/build.txt" 2>&1 || { tail -n 20 "$out/build.txt"; echo "the build failed"; exit 1; }
    echo "built after $((SECONDS - begin)) s"
fi
[[ ! $compile ]] || { wait "$compile"; echo "C++ extensions of DeepSpeed: exit code $? after $((SECONDS - begin)) s"; }

if wanted a; then
    part a timeout -k 5 $(($(left) + 5)) "$python" perf/workers_vs_torch.py --model "$model" --workers "$list" --strategies ddp \
        --peers ddp --scaling "$most" --rounds 6 --steps 1 --budget-s "$(but 44)"
fi
if wanted bc; then
    peers=none
    [[ ! -d $folder ]] || peers=zero2,zero3
    part bc timeout -k 5 $(($(left) + 5)) "$python" perf/workers_vs_torch.py --model "$model" --workers "$most" \
        --strategies dp,ddp,zero1,zero2,zero3 --peers "$peers" --rounds 4 --steps 1 --budget-s "$(but 10)"
fi
if wanted d; then
    part d timeout -k 5 $(($(left) + 5)) "$python" perf/allreduce_vs_mpi.py --allreduce "$(dirname "$LOCKSTEP")/allreduce" \
        --workers 2,4 --mb "$mb" --rounds 5 --calls 3 --budget-s "$(left)"
fi
if wanted e; then
    part e timeout -k 5 $(($(left) + 5)) "$python" perf/determinism_price.py --model "$model" --workers 2,4 --rounds 10 --steps 2 \
        --global_batch 16 --micro 2 --budget-s "$(left)"
fi
printf '\n%s s of %s used\n' $((SECONDS - begin)) "$budget"
