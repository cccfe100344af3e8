#!/usr/bin/env bash
# What tells runs apart: other data under the same path, switches of the environment, the commit that was built.
. "$(dirname "$0")/../support/lib.sh"
cd "$SCRATCH" || exit 1
for v in $(compgen -e | grep -E '^(LS_(GEMM|SIMD|ATTENTION|FLASH|CUDA|CLASSIFIER|CUDNN)|NCCL_|OMP_|GOMP_|OPENBLAS_|MKL_|CUDA_)'); do unset "$v"; done
is() { [ "$2" = "$3" ] || bad "$1 is $2, expected $3"; }
go() { # FOLDER RUN: trains in the folder, on its `data`
  (cd "$1" && "$LOCKSTEP" train --data data --model tiny --num_layers 1 --seq_length 16 --micro_batch_size_per_gpu 1 --threads 1 --max_steps 6 \
    --checkpoint_path "../$2") >out 2>err || bad "train in $1: $(cat err)"
}
value() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1] + "/training_metrics.json"))["lockstep"].get(sys.argv[2]))' "$1" "$2"; }
ab() { "$LOCKSTEP" bench ab --warmup 1 "$1" "$2" >out 2>err || bad "bench ab $1 $2: $(cat err)"; }

for k in 1 2; do mkdir -p d$k/data && tokens d$k/data/train.bin 4000 $k && tokens d$k/data/val.bin 400 7; done
go d1 a1; go d1 a2; go d2 b1
ab a1 a2
! grep -q "Settings that differ" out || bad "repeats differ: $(cat out)"
ab a1 b1
grep -q "Settings that differ: train_data (A: xxh3:$(value a1 train_data | cut -c6-); B: xxh3:" out || bad "other data is not a difference: $(cat out)"
! grep -q val_data out || bad "the validation data is the same: $(cat out)"

LS_GEMM=plain NCCL_PROTO=LL NCCL_ALGO=Ring NCCL_DEBUG=WARN go d1 e1
[ "$(value e1 environment)" = "LS_GEMM=plain NCCL_ALGO=Ring NCCL_PROTO=LL" ] || bad "environment: $(value e1 environment)"
[ "$(value a1 environment)" = None ] || bad "environment without switches: $(value a1 environment)"
ab a1 e1
grep -q "environment (A: not set; B: LS_GEMM=plain NCCL_ALGO=Ring NCCL_PROTO=LL)" out || bad "switches are not a difference: $(cat out)"

# a prepared folder: the SHA-256 of prepare
seq 1 3000 >text.txt && mkdir p
"$LOCKSTEP" prepare --quiet --input text.txt --out p/data --tokenizer bytes >out 2>err || bad "prepare: $(cat err)"
go p p1
[ "$(value p1 train_data)" = "sha256:$(sha256sum p/data/train.bin | cut -c1-16)" ] || bad "prepared data: $(value p1 train_data)"

# the commit: of the build, whatever the repository of the current folder is
[ "$(value a1 commit)" != None ] || bad "no commit"
if command -v git >/dev/null && command -v cmake >/dev/null; then
  mkdir -p tree/src/sub && cd tree || exit 1
  built() { cmake -DSOURCE="$SCRATCH/tree$1" -DOUT="$SCRATCH/built.c" -DCOMMIT="${2:-}" -P "$LS_SOURCE/cmake/BuiltCommit.cmake" && sed -n 's/^const.*"\(.*\)".*/\1/p' "$SCRATCH/built.c"; }
  is "no repository" "$(GIT_CEILING_DIRECTORIES=$SCRATCH built '')" unknown
  is "given" "$(built '' v1)" v1
  git init -q . && echo 1 >src/a.c && echo 1 >README && git add . && git -c user.name=n -c user.email=e commit -qm one
  head=$(git rev-parse HEAD)
  is "clean" "$(built '')" "$head"
  touch -d '2001-01-01' "$SCRATCH/built.c" && is "again" "$(built '')" "$head"
  [ "$(stat -c %Y "$SCRATCH/built.c")" -lt 1000000000 ] || bad "an equal commit writes the file again"
  echo 2 >README && is "other files differ" "$(built '')" "$head"
  echo 2 >src/b.c && is "a new source" "$(built '')" "$head-dirty"
  mkdir -p src/sub && is "sources inside another repository" "$(built /src/sub)" unknown
  cd ..
fi
done_tests
