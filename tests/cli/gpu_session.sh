#!/usr/bin/env bash
# perf/gpu_session.sh without a GPU: parts, their exit codes and files on the emulated device; cases with several ranks that equal one worker, and
# one that cannot; a list of targets that is longer than the buffer of a pipe.
. "$(dirname "$0")/../support/lib.sh"
build=${LS_BUILD:-$LS_SOURCE/build}
[ -f "$build/emu/lockstep_cuda.so" ] || skip "no emulated device: built with the tests (LS_TESTS)"
session=$LS_SOURCE/perf/gpu_session.sh
export OUT=$SCRATCH/results TMPDIR=$SCRATCH/tmp DEVICE=emu COMM=local JOBS=2 BUILD=$build BUDGET=200 TRAIN_ARGS="--num_layers 2 --num_heads 2 --embedding_size 32"
mkdir -p "$TMPDIR"

# no target is missed: the names are searched in the whole list
mkdir -p "$SCRATCH/bin" "$SCRATCH/b"
cat >"$SCRATCH/bin/ninja" <<'N'
#!/bin/sh
case "$*" in
*"-t targets"*) for t in lockstep_cuda lockstep_mpi cuda_gemm cuda_kernels; do echo "$t: phony"; done; seq -f 'file%g.o: C_COMPILER' 60000 ;;
esac
N
printf '#!/bin/sh\n' >"$SCRATCH/bin/cmake"
chmod +x "$SCRATCH/bin/"*
PATH=$SCRATCH/bin:$PATH DEVICE=cuda BUILD=$SCRATCH/b "$session" build >"$SCRATCH/build" 2>&1 || bad "build: $(tail -n 3 "$SCRATCH/build")"
grep -q "== built lockstep lockstep_cuda lockstep_mpi cuda_gemm cuda_kernels;" "$SCRATCH/build" || bad "build leaves targets out: $(grep built "$SCRATCH/build")"
grep -q "== no target lockstep_nccl" "$SCRATCH/build" || bad "a target that does not exist is not reported"

ONLY='^tiny-2-(ddp|pp2-gpipe|tp2)$|^torchrun-2-ddp$' "$session" nccl tiny >"$SCRATCH/nccl" 2>&1 || bad "nccl tiny: $(grep '==' "$SCRATCH/nccl" | head -n 9)"
for words in "tiny-2-ddp: ok, .*: the bits of one worker" "tiny-2-tp2: ok, .*: losses within" "torchrun-2-ddp: ok" "row4: ok, 1 of 1" "4 ok, 0 FAILED" \
  "nothing left running or in shared memory: ok"; do
  grep -q "^== $words" "$OUT/nccl-tiny.txt" || bad "no '$words' in the summary: $(cat "$OUT/nccl-tiny.txt")"
done
[ -s "$OUT/nccl-tiny.tar.gz" ] || bad "no files of the cases"

# a difference is found: with another seed and learning rate, several workers do not equal one worker (TRAIN_ARGS would apply to both)
cat >"$SCRATCH/other" <<O
#!/bin/sh
case "\$*" in *"-n 2"*) exec "$LOCKSTEP" "\$@" --seed 7 --lr 0.1 ;; esac
exec "$LOCKSTEP" "\$@"
O
chmod +x "$SCRATCH/other"
LS_PLUGIN_DIR=$build/emu LS_GEMM_TUNE=0 LOCKSTEP=$SCRATCH/other python3 "$LS_SOURCE/perf/gpu_nccl.py" tiny --only '^tiny-2-(ddp|tp2)$' --work "$SCRATCH/w" >"$SCRATCH/differs" 2>&1
[ $? = 1 ] || bad "losses that differ: exit code 0"
grep -q "^== tiny-2-ddp: FAILED, .*2 of 2 losses differ" "$SCRATCH/differs" || bad "losses that differ: $(cat "$SCRATCH/differs")"
grep -q "^== tiny-2-tp2: FAILED, .*more than 0.005" "$SCRATCH/differs" || bad "losses that are not near: $(cat "$SCRATCH/differs")"

idle=$((100000 + $$)) # seconds, which no other process sleeps
# a case that hangs is ended with its processes, and reported
cat >"$SCRATCH/other" <<O
#!/bin/sh
case "\$*" in *"-n 2"*) sleep $idle & sleep $idle ;; esac
exec "$LOCKSTEP" "\$@"
O
LS_PLUGIN_DIR=$build/emu LS_GEMM_TUNE=0 LOCKSTEP=$SCRATCH/other python3 "$LS_SOURCE/perf/gpu_nccl.py" tiny --only '^tiny-2-ddp$' --work "$SCRATCH/w" --limit 3 >"$SCRATCH/hangs" 2>&1
[ $? = 1 ] && grep -q "^== tiny-2-ddp: FAILED, .*has not ended" "$SCRATCH/hangs" || bad "a case that hangs: $(cat "$SCRATCH/hangs")"
pgrep -f "sleep $idle" >/dev/null && bad "a process of a case outlived it"
expect 2 "unknown part none" "$session" none
done_tests
