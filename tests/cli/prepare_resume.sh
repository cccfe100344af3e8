#!/usr/bin/env bash
# prepare is killed at random times and resumed: the files are those of a run that was not killed, byte for byte, and the folder is the old
# one or the new one at any time. LS_TEST_ALL: more kills.
. "$(dirname "${BASH_SOURCE[0]}")/../support/lib.sh"
[ -x "$LOCKSTEP" ] || skip "no program at $LOCKSTEP"
for tool in python3 zstd; do command -v $tool >/dev/null || skip "no $tool to make packed inputs with"; done
cd "$SCRATCH" || exit 1
is() { [ "$2" = "$3" ] || bad "$1 is $2, expected $3"; }
python3 - <<'PY'
import json, random
r = random.Random(11)
words = ["".join(r.choice("etaoinshrdlu") for _ in range(r.randrange(1, 9))) for _ in range(500)] + ["né", "漢字"]
docs = [" ".join(r.choices(words, k=r.randrange(1, 120))) for _ in range(9000)]
with open("a.jsonl", "w") as f:
    for i in range(30000): f.write(json.dumps({"text": docs[i] if i < 9000 else r.choice(docs) if i % 3 else docs[i % 9000] + str(i)}) + "\n")
open("b.txt", "w").write(" ".join(r.choices(words, k=600000)))
open("c.txt", "w").write(" ".join(r.choices(words, k=90000)))
PY
zstd -q a.jsonl
cp b.txt d.txt

kills=${LS_TEST_ALL:+40}; kills=${kills:-2}
now() { date +%s%N; }
# until_killed SECONDS COMMAND...: whether it ended before
until_killed() {
  local seconds=$1 pid
  shift
  "$@" >/dev/null 2>err &
  pid=$!
  sleep "$seconds"
  while [ "$journal" ] && [ ! -e "$journal" ] && kill -0 $pid 2>/dev/null; do sleep 0.01; done
  kill -KILL $pid 2>/dev/null
  wait $pid 2>/dev/null
}
# killed NAME ARGS...: resumed after kills at random times of its run; the folder equals NAME-whole
killed() {
  local name=$1 k=0 start whole
  shift
  start=$(now)
  "$LOCKSTEP" prepare --quiet --out "$name-whole" "$@" >/dev/null 2>err || bad "$name: $(cat err)"
  whole=$((($(now) - start) / 1000000))
  while [ $k -lt "$kills" ]; do
    k=$((k + 1)) journal=
    [ $k = 1 ] && journal=$name.partial/journal.json # the first one is killed after its first journal entry
    until_killed "$(printf '%d.%03d' $((RANDOM % (whole + 1) / 1000)) $((RANDOM % (whole + 1) % 1000)))" \
      "$LOCKSTEP" prepare --quiet --resume --journal_seconds 0 --out "$name" "$@" && break
    [ ! -e "$name" ] || break # killed after the folder was in place: it must be complete, as compared below
    [ ! -e "$name.partial/journal.json" ] || found=$((found + 1))
  done
  [ -e "$name" ] || "$LOCKSTEP" prepare --quiet --resume --journal_seconds 0 --out "$name" "$@" >/dev/null 2>err || bad "$name: $(cat err)"
  # the command line in meta.json has the other --out
  sed -i "s/--out $name-whole/--out $name/; s/ --journal_seconds 0//" "$name-whole/meta.json" "$name/meta.json"
  diff -r "$name-whole" "$name" >diff.txt || bad "$name: $(head -c 300 diff.txt)"
  [ ! -e "$name.partial" ] || bad "$name: unfinished work was left"
}
found=0
killed jsonl --tokenizer bytes --threads 2 --dedup --min_chars 20 --shard_tokens 500000 a.jsonl.zst c.txt
# many files, of which several are read at the same time: the documents and so the files of one
split -n l/3 a.jsonl part- --additional-suffix=.jsonl; zstd -q --rm part-*.jsonl
killed many --tokenizer bytes --threads 8 --files_at_once 3 --dedup --min_chars 20 --shard_tokens 500000 part-*.zst c.txt
for f in jsonl/*.bin; do same "$f" "many/${f#*/}"; done
LS_LOG=data=debug "$LOCKSTEP" prepare --quiet --tokenizer bytes --threads 8 --files_at_once 3 --out log part-*.zst >/dev/null 2>err
grep -Eq ' [1-9][0-9]* of [0-9]+ blocks through files' err || bad "no block went through a file: $(grep blocks err)"
expect 2 'read one after the other with --limit_docs' "$LOCKSTEP" prepare --tokenizer bytes --files_at_once 3 --limit_docs 5 --out x c.txt
killed plain --tokenizer train --vocab_size 300 --threads 1 --dedup b.txt c.txt d.txt
killed tail --tokenizer bytes --threads 2 --shard_tokens 1000000 b.txt
cp c.txt c2.txt # the third document, for validation, has most of the text: its end is moved to the training data
killed moved --tokenizer bytes --threads 2 --val_fraction 0.34 --shard_tokens 1000000 c.txt c2.txt b.txt
killed val --tokenizer bytes --threads 2 --max_chars 600 --input c.txt a.jsonl.zst --val_input b.txt a.jsonl
[ $found -gt 0 ] || bad "no run was killed after its first journal entry"

# SIGTERM: stops, and continues from there
mkfifo gate
"$LOCKSTEP" prepare --quiet --journal_seconds 1000 --tokenizer bytes --threads 1 --out stop a.jsonl b.txt c.txt d.txt 2>err &
pid=$!
await $pid test -s stop.partial/train.bin
kill -TERM $pid; wait $pid; code=$?
if [ $code = 143 ]; then
  grep -q 'the same command with --resume continues it' err || bad "the message after SIGTERM: $(cat err)"
  expect 2 "was begun with 'min-chars: 0', this command has 'min-chars: 3'" "$LOCKSTEP" prepare --quiet --resume --min_chars 3 --tokenizer bytes --out stop a.jsonl b.txt c.txt d.txt
  [ -e stop.partial/journal.json ] || bad "a refused command removed the work of another"
  truncate -s -2 stop.partial/train.bin
  cp -r stop.partial damaged.partial
  expect 3 'does not match the journal' "$LOCKSTEP" prepare --quiet --resume --tokenizer bytes --out damaged a.jsonl b.txt c.txt d.txt
  rm -rf stop.partial
else
  is "exit code after SIGTERM" $code 0
fi
"$LOCKSTEP" prepare --quiet --resume --tokenizer bytes --out stop a.jsonl >/dev/null || bad "--resume with nothing to resume"
# a complete folder: left as it is, unless the command, an input or a file of it has changed
printf 'some text' >in.txt
complete=(prepare --quiet --tokenizer bytes --out complete --val_fraction 0 in.txt)
"$LOCKSTEP" "${complete[@]}" >/dev/null
times() { stat -c '%n %i %y %z' complete complete/*; }
before=$(times)
expect 0 'complete is complete: .*nothing to do' "$LOCKSTEP" "${complete[@]}" --resume
is "times after a resume" "$(times)" "$before"
"$LOCKSTEP" "${complete[@]}" --resume --json >json && grep -q '"tokens": *10' json || bad "--json of a complete folder: $(cat json)"
remade() { # [WORD]
  "$LOCKSTEP" "${complete[@]}" "$@" --resume >out 2>err && ! grep -q 'nothing to do' out && [ "$(times)" != "$before" ] || bad "not made again: $(cat out err)"
  before=$(times)
}
printf 'other' >in.txt; touch -d 2001-01-01 in.txt
remade # the date of a change is not that of its file
printf x >>complete/train.bin
remade
remade --min_chars=1

# killed at exact system calls while the folder is replaced: it is the old one or the new one, and its other files stay
if command -v strace >/dev/null && strace -o /dev/null true 2>/dev/null; then
  small=(--quiet --tokenizer bytes --val_fraction 0)
  printf 'one text' >one.txt; printf 'another text' >two.txt
  "$LOCKSTEP" prepare "${small[@]}" --out two two.txt >/dev/null
  for call in fsync rename,renameat link,linkat renameat2 unlink,unlinkat; do
    for n in 1 2 3; do
      rm -rf place place.partial first
      "$LOCKSTEP" prepare "${small[@]}" --out place one.txt >/dev/null; echo mine >place/notes; cp -r place first
      strace -f -qq -o /dev/null -e "inject=$call:signal=KILL:when=$n" "$LOCKSTEP" prepare "${small[@]}" --journal_seconds 0 --out place two.txt >/dev/null 2>&1 &
      wait $! 2>/dev/null
      diff -r first place >/dev/null || { cmp -s place/train.bin two/train.bin && [ -e place/notes ]; } || bad "killed at $call $n: $(ls place)"
      "$LOCKSTEP" prepare "${small[@]}" --journal_seconds 0 --resume --out place two.txt >/dev/null 2>err || bad "resumed after $call $n: $(cat err)"
      same two/train.bin place/train.bin
      is "the files after $call $n" "$(ls -d place place.partial 2>/dev/null) $(cat place/notes)" "place mine"
    done
  done
else
  echo "kills at exact system calls are not tested: strace is not available"
fi

# an old folder: whole until it is replaced, other files stay, and two writers exclude each other
"$LOCKSTEP" prepare --quiet --tokenizer bytes --val_fraction 0 --out old c.txt >/dev/null; echo mine >old/notes; cp -r old before
until_killed 0.1 "$LOCKSTEP" prepare --quiet --journal_seconds 0 --tokenizer bytes --threads 1 --out old a.jsonl b.txt c.txt
[ -e old/val.bin ] || diff -r old before || bad "a killed run changed the old folder"
"$LOCKSTEP" prepare --quiet --tokenizer bytes --format txt --val_fraction 0 --out old gate >/dev/null 2>err & pid=$!
exec 3>gate
await $pid test -e old.partial
expect 2 'another `lockstep prepare` is writing' "$LOCKSTEP" prepare --quiet --tokenizer bytes --out old c.txt
printf text >&3; exec 3>&-
wait $pid || bad "the first writer: $(cat err)"
is "tokens of the new folder" "$(wc -c <old/train.bin)" 10
is "files of the new folder" "$(ls old | tr '\n' ' ')" "meta.json notes tokenizer.json train.bin "
# a folder with folders in it, and the current one: the files are replaced, the rest stays
mkdir old/deeper; (cd old && "$LOCKSTEP" prepare --quiet --tokenizer bytes --out . ../c.txt >/dev/null) || bad "--out ."
is "files of the current folder" "$(ls -A old | tr '\n' ' ')" "deeper meta.json notes tokenizer.json train.bin val.bin "
"$LOCKSTEP" prepare --quiet --tokenizer bytes --val_fraction 0 --out old/ c.txt >/dev/null || bad "a folder with folders in it"
is "files of a folder with folders" "$(ls -A old | tr '\n' ' ')" "deeper meta.json notes tokenizer.json train.bin "
mkdir own.partial; echo mine >own.partial/notes
expect 3 'which `prepare` did not write' "$LOCKSTEP" prepare --quiet --tokenizer bytes --out own c.txt
is "a folder of the user" "$(cat own.partial/notes)" mine
expect 2 'not standard input or pipes' "$LOCKSTEP" prepare --resume --tokenizer bytes --out x - --format txt
done_tests
