#!/usr/bin/env bash
# perf/card_report.sh on the emulated device: the folder and the archive, that `lockstep report` reads, without names of users, hosts and folders; what
# it says without a GPU; what it does not overwrite.
. "$(dirname "$0")/../support/lib.sh"
build=${LS_BUILD:-$LS_SOURCE/build}
[ -f "$build/emu/lockstep_cuda.so" ] || skip "no emulated device: built with the tests (LS_TESTS)"
unset LS_DEVICE
export BUILD=$build OUT=$SCRATCH/made/report TMPDIR=$SCRATCH/tmp HOME=$SCRATCH/homes/jdoe LOGNAME=jdoe
mkdir -p "$TMPDIR" "$SCRATCH/made" "$HOME"
report=$LS_SOURCE/perf/card_report.sh

expect 2 "at most 15 minutes" "$report" now
expect 2 "there is no $SCRATCH/lockstep; run ./run build first" env BUILD="$SCRATCH" "$report"
mkdir "$SCRATCH/mine"
expect 2 "mine exists and is not a report of a card" env DEVICE=emu OUT="$SCRATCH/mine" "$report"
expect 2 "no GPU that Lockstep can use here" env DEVICE=emu LS_EMU_DEVICES=0 "$report"
[ ! -e "$OUT" ] || bad "a report without a GPU: $(ls "$OUT")"

DEVICE=emu LS_EMU_DEVICES=2 "$report" >"$SCRATCH/said" 2>&1 || bad "exit code $?: $(cat "$SCRATCH/said")"
for words in "^\[1/6\] doctor" "doctor: ok; cards: 2" "fp16: ok, in fp16, loss" "^\[4/6\] scaling on 1,2 cards" "scaling: ok" "^  zero1 .* 2 " "all checks passed" "attach the archive"; do
  grep -q -- "$words" "$SCRATCH/said" || bad "'$words' is not printed: $(cat "$SCRATCH/said")"
done
[ -z "$(ls "$TMPDIR")" ] || bad "left behind: $(ls "$TMPDIR")"
expect 0 "2 runs" "$LOCKSTEP" report "$OUT" --no_png --out "$SCRATCH/page"
mkdir "$SCRATCH/unpacked"
tar -C "$SCRATCH/unpacked" -xzf "$OUT.tar.gz" || bad "the archive"
for f in summary.txt card.txt checks/doctor.txt scaling/2gpu_zero1/run_1/training_metrics.json report/report.md; do
  [ -s "$SCRATCH/unpacked/report/$f" ] || bad "the archive has no $f: $(find "$SCRATCH/unpacked" -type f)"
done
for private in jdoe "$SCRATCH" "$LS_SOURCE" "\"$(hostname)\""; do
  ! grep -rlF -- "$private" "$SCRATCH/unpacked" || bad "the archive contains $private"
done
[ -z "$(find "$SCRATCH/unpacked" -name '*.safetensors' -o -name launcher_metadata.json)" ] || bad "weights or hosts in the archive"
done_tests
