#!/usr/bin/env bash
# data fetch: a local server that breaks connections, has no ranges, is busy, moves or loses the file; checksums; a kill in between; no network.
. "$(dirname "${BASH_SOURCE[0]}")/../support/lib.sh"
[ -x "$LOCKSTEP" ] || skip "no program at $LOCKSTEP"
command -v python3 >/dev/null || skip "no python3 for a web server"
cd "$SCRATCH" || exit 1
unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY
is() { [ "$2" = "$3" ] || bad "$1 is $2, expected $3"; }
field() { python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["files"][0][sys.argv[2]])' "$1" "$2"; }
head -c 750000 /dev/urandom >body
sha=$(sha256sum <body | cut -d' ' -f1)
python3 "$LS_SOURCE/tests/support/flaky_http.py" body port & server=$!
at_end() { kill $server 2>/dev/null; }
await $server test -s port || skip "the web server did not start"
base=http://127.0.0.1:$(cat port)
call=("$LOCKSTEP" data fetch iwslt14-de-en --quiet --sha256 "$sha" --json)
fetch() { "${call[@]}" "$@"; }
# got NAME MODE: downloads into NAME, summary in NAME.json
got() {
  fetch --url "$base/$2" --out "$1" >"$1.json" 2>err || bad "$2: $(cat err)"
  same body "$1/de-en.tgz"
  [ ! -e "$1/de-en.tgz.part" ] || bad "$2: the part file was left"
}

got whole whole
is "bytes" "$(field whole.json fetched_bytes)" 750000
got drop drop
is "broken connections" "$(field drop.json broken_connections)" 7
is "bytes with ranges, none twice" "$(field drop.json fetched_bytes)" 750000
got norange norange
is "bytes without ranges" "$(field norange.json fetched_bytes)" 850000
for mode in shifted unnamed; do # a range with another start, or that does not say which
  got $mode $mode
  is "bytes of $mode" "$(field $mode.json fetched_bytes)" 850000
done
got changed changed # while it is downloaded: nothing of the old file is left
is "bytes of a file that changed" "$(field changed.json fetched_bytes)" 850000
[ "$(ls changed)" = de-en.tgz ] || bad "files beside the download: $(ls changed)"
got busy busy
is "attempts at a busy server" "$(field busy.json broken_connections)" 2
got moved moved
expect 3 '404.* get https://.*de-en.tgz on another machine, put it at lost/de-en.tgz (19982877 bytes)' fetch --url "$base/gone" --out lost
[ ! -e lost/de-en.tgz.part ] || bad "an empty part file was left"

# a file that exists is checked and not downloaded
fetch --url "$base/gone" --out whole >again.json || bad "a file that exists"
is "a file that exists" "$(field again.json existed)" True
echo x >>whole/de-en.tgz
expect 3 'whole/de-en.tgz: 750002 bytes with SHA-256' fetch --url "$base/whole" --out whole
[ -e whole/de-en.tgz ] || bad "a file of the user was removed"

# killed: the next call continues
"${call[@]}" --url "$base/slow" --out slow >/dev/null 2>&1 & pid=$!
await $pid test -s slow/de-en.tgz.part
kill -KILL $pid; wait $pid 2>/dev/null
part=$(wc -c <slow/de-en.tgz.part)
got slow whole
is "bytes after a kill" "$(field slow.json fetched_bytes)" $((750000 - part))
# stopped by SIGTERM
"${call[@]}" --url "$base/slow" --out stop >/dev/null 2>err & pid=$!
await $pid test -s stop/de-en.tgz.part
kill -TERM $pid; wait $pid; is "exit code after SIGTERM" $? 143
grep -q 'the same command continues the download' err || bad "the message after SIGTERM: $(cat err)"
got stop whole
# a complete part file, and one that is too long
mkdir full; cp body full/de-en.tgz.part; got full whole
mkdir long; cat body body >long/de-en.tgz.part; got long whole

# other bytes than expected: not kept
other=${sha//[0-9]/a}
expect 3 "with SHA-256 ${sha:0:16}..., expected ${other:0:16}" "$LOCKSTEP" data fetch iwslt14-de-en --quiet --sha256 "$other" --url "$base/whole" --out wrong
[ -z "$(ls wrong)" ] || bad "wrong bytes were kept: $(ls wrong)"
expect 3 'webtext.train.jsonl: the server sends 750000 bytes, expected 679129270: another file' "$LOCKSTEP" data fetch webtext --quiet --url "$base/whole" --out wrong
[ -z "$(ls wrong)" ] || bad "wrong bytes were kept: $(ls wrong)"

# a set of known size
by_size=("$LOCKSTEP" data fetch iwslt14-de-en --quiet --retries 0 --json)
known=19982877
head -c $known /dev/zero >body2
python3 "$LS_SOURCE/tests/support/flaky_http.py" body2 port2 & server2=$!
at_end() { kill $server $server2 2>/dev/null; }
await $server2 test -s port2
base2=http://127.0.0.1:$(cat port2)
# connections that end early without saying the length are continued
mkdir early; head -c $((known - 350000)) body2 >early/de-en.tgz.part
"${by_size[@]}" --url "$base2/nolength" --out early >early.json 2>err || bad "a connection that ends early: $(cat err)"
same body2 early/de-en.tgz
is "connections that ended early" "$(field early.json broken_connections)" 3
# a server that never ends: no more than the size is written, and nothing is kept
expect 3 'the server sends more than 19982877 bytes, expected 19982877' "${by_size[@]}" --url "$base/endless" --out endless
[ -z "$(ls endless)" ] || bad "bytes of an endless file were kept: $(ls -l endless)"
# a login page: what has arrived stays
mkdir page; head -c 5000 body2 >page/de-en.tgz.part
expect 3 'sends 18 bytes, expected 19982877: another file, or a page that asks for a login; page/de-en.tgz.part is kept; or get https' \
  "${by_size[@]}" --url "$base/login" --out page
is "the part file after a login page" "$(wc -c <page/de-en.tgz.part)" 5000

# nobody listens: what to do by hand
kill $server; wait $server 2>/dev/null
expect 3 'get https://openaipublic.*webtext.train.jsonl on another machine, put it at off/webtext.train.jsonl (679129270 bytes, SHA-256 cf6db7bb' \
  "$LOCKSTEP" data fetch webtext --quiet --retries 0 --url "$base/whole" --out off
expect 2 'cannot be downloaded by this command: accept the terms.*put the files at there/' "$LOCKSTEP" data fetch oscar-en --out there
expect 2 'did you mean webtext' "$LOCKSTEP" data fetch webtxt
expect 2 'needs the name of one data set' "$LOCKSTEP" data fetch
expect 2 'needs 64 hexadecimal digits' "$LOCKSTEP" data fetch webtext --sha256 "$sha"
# the text that comes with the program: anywhere, without a network
mkdir plays; cp "$LOCKSTEP" plays/copied; (cd plays && ./copied data fetch shakespeare >../plays.out) || bad "data fetch shakespeare"
is "the text's SHA-256" "$(sha256sum <plays/shakespeare.txt)" "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed  -"
grep -q '^shakespeare.txt  *1.1 MiB  written' plays.out || bad "data fetch shakespeare prints $(cat plays.out)"
grep -qx 'next: lockstep train shakespeare.txt' plays.out || bad "data fetch shakespeare prints $(cat plays.out)"
"$LOCKSTEP" data fetch shakespeare --out plays --json >plays.json || bad "a text that exists"
is "a text that exists" "$(field plays.json existed) $(field plays.json fetched_bytes)" 'True 0'
echo x >>plays/shakespeare.txt
expect 3 'plays/shakespeare.txt has 1115396 bytes, expected 1115394; move or remove it' "$LOCKSTEP" data fetch shakespeare --out plays
expect 3 'other/shakespeare.txt: 1115394 bytes with SHA-256 86c4e6aa9db7c042..., expected' "$LOCKSTEP" data fetch shakespeare --sha256 "$sha" --out other
[ -z "$(ls other)" ] || bad "another text was kept: $(ls other)"
expect 2 '`lockstep data fetch shakespeare` writes a text' env LS_DEVICE=cpu "$LOCKSTEP" train
expect 3 '`lockstep data fetch shakespeare` writes a text' env LS_DEVICE=cpu "$LOCKSTEP" train missing.txt
is "the first set" "$("$LOCKSTEP" data list | head -n 1 | awk '{print $1, $2, $3}')" 'shakespeare 1.1 MiB'
"$LOCKSTEP" data list | grep -q '^webtext  *673.5 MiB' || bad "data list"
"$LOCKSTEP" data list --json | python3 -c 'import json,sys; s=json.load(sys.stdin)["sets"]; assert len(s) == 7 and s[0]["files"][0]["url"] is None and s[1]["files"][0]["sha256"].startswith("cf6d")' || bad "data list --json"
done_tests
