#!/usr/bin/env bash
# `train --serve`, `serve` and `watch`: pages and data, malformed requests, tokens, ports, what other machines can reach, and the end.
. "$(dirname "$0")/../support/lib.sh"
client() { python3 "$LS_SOURCE/tests/support/live_client.py" "$@"; }
cd "$SCRATCH" || exit 1
server=0 other=0 patient=0
at_end() { for p in $server $other $patient; do [ "$p" = 0 ] || kill "$p" 2>/dev/null; done; }
"$LOCKSTEP" serve nowhere >out 2>&1
grep -q "no HTTP server" out && skip "this build has no libmicrohttpd"

# runs to show: one that trained, one that ended without a word, one whose name needs escapes
tokens train.bin 3000 && tokens val.bin 400 2
expect 0 "" "$LOCKSTEP" train --data . --model tiny --num_layers 1 --seq_length 32 --train_micro_batch_size_per_gpu 2 --eval_every 2 \
  --max_steps 6 -n 2 --checkpoint_path runs/good
python3 - <<'PY' || bad "events.jsonl and ranks.jsonl"
import json
events = [json.loads(l) for l in open("runs/good/events.jsonl")]
assert [e["event"] for e in events] == ["start", "validation", "validation", "validation", "checkpoint", "end"], events
assert events[0]["total_steps"] == 6 and events[0]["world_size"] == 2 and events[-1]["state"] == "complete", events
assert [e["step"] for e in events if e["event"] == "validation"] == [2, 4, 6], events
text = open("runs/good/ranks.jsonl").read()
assert len(text) == 2 * 512, len(text)
ranks = [json.loads(l) for l in text.splitlines()]
assert [(r["rank"], r["step"], r["phase"]) for r in ranks] == [(0, 6, "ended"), (1, 6, "ended")], ranks
PY
odd='<img src=x onerror=alert(1)> "q" \ ä'
latin1=$'caf\xe9' # not UTF-8
for name in "$odd" "$latin1"; do mkdir -p "runs/$name" && head -n 3 runs/good/metrics.jsonl >"runs/$name/metrics.jsonl"; done

# serve: address and port printed, then every check of the client
start() { # start FILE ARGUMENTS...: waits for the address; sets $server and $url
  local file=$1
  shift
  "$LOCKSTEP" serve "$@" >"$file" 2>&1 &
  server=$!
  await $server grep -q "Open http" "$file" || bad "serve $*: $(cat "$file")"
  url=$(grep -o "http://[^ ]*" "$file")
}
port_of() { echo "$1" | sed 's|.*:\([0-9]*\)/.*|\1|'; }
# a client that sends one byte per second is disconnected, while the rest of this test runs
start slow runs
(client "$(port_of "$url")" slow >slow.out) &
slow=$! patient=$server
start first runs
port=$(port_of "$url")
client "$port" checks || bad "serve runs"
curl_free() { python3 -c 'import urllib.request, sys; sys.stdout.buffer.write(urllib.request.urlopen(sys.argv[1]).read())' "$1"; }
curl_free "http://127.0.0.1:$port/api/runs" | grep -q '"state": "finished", "step": 6' || bad "the finished run is not listed"
curl_free "http://127.0.0.1:$port/" >page && grep -q "onerror" page && bad "a name of a run is in the page"
# only loopback listens
python3 - "$port" <<'PY' || bad "reachable from another address"
import socket, sys
try:
    addresses = {i[4][0] for i in socket.getaddrinfo(socket.gethostname(), None)}
except socket.gaierror:
    addresses = set()  # the name of a bare machine may have no address; the one that it sends from is below
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
try:
    s.connect(("192.0.2.1", 9))  # sends nothing; chooses the address of this machine
    addresses.add(s.getsockname()[0])
except OSError:
    pass
want = f":{int(sys.argv[1]):04X}"
listening = {line.split()[1].split(":")[0] for f in ("/proc/net/tcp", "/proc/net/tcp6") for line in open(f).read().splitlines()[1:]
             if line.split()[1].endswith(want) and line.split()[3] == "0A"}
assert listening <= {"0100007F", "00000000000000000000000001000000"}, listening
for a in addresses:
    if a.startswith("127.") or a == "::1":
        continue
    try:
        socket.create_connection((a, int(sys.argv[1])), timeout=2)
    except OSError:
        continue
    raise SystemExit(f"reached through {a}")
PY
# the port is in use: refused if it was given, else the next one
expect 2 "port $port is in use" "$LOCKSTEP" serve runs --port "$port"
other=$server
start second runs
[ "$(port_of "$url")" != "$port" ] || bad "the second server has the port $(port_of "$url")"
kill $server && wait $server || bad "serve ends with exit code $? after SIGTERM"
server=$other other=0
kill -INT $server && wait $server || bad "serve ends with exit code $? after SIGINT"
# another address of loopback: the one that is printed answers
start fourth runs --address 127.0.0.2
[[ $url == http://127.0.0.2:* ]] || bad "serve --address 127.0.0.2 prints $url"
curl_free "$url" >page && grep -q "<title>Lockstep" page || bad "no answer at $url"
kill $server && wait $server
# beyond loopback: with a token
start third runs --address 0.0.0.0
token=${url#*token=}
[ ${#token} = 32 ] || bad "no token in $url"
client "$(port_of "$url")" checks "$token" || bad "serve --address"
kill $server
wait $server
server=0
expect 2 "not an address" "$LOCKSTEP" serve runs --address no.such.host.invalid
expect 3 "no such folder" "$LOCKSTEP" serve nowhere
expect 3 "give a run folder" env -C / "$LOCKSTEP" serve

# watch: once in a pipe, and with --once
LC_ALL=C.UTF-8 "$LOCKSTEP" watch runs/good >watched || bad "watch: $?"
grep -q "finished  step 6 of 6" watched && grep -q "⠉" watched && grep -q "ended" watched || bad "watch prints $(cat watched)"
expect 0 "|'" env LC_ALL=C "$LOCKSTEP" watch --once runs/good
mkdir empty
expect 3 "no run in it" "$LOCKSTEP" watch empty --once
expect 2 "watch shows one run" "$LOCKSTEP" watch runs/good runs/good

# the page in a browser, where there is one, on a phone: it fits, 48 runs are in a box that scrolls, they are filtered, sorted and grouped, and the x axis and
# the smoothing change the curve. The page that looks is of the same origin, through a proxy.
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
if [ -n "$browser" ]; then
  for k in $(seq 1 12); do for group in a b c d; do
    mkdir -p "many/$group/r$k" && cp runs/good/{metrics,events}.jsonl "many/$group/r$k"
  done; done
  start many.out many
  cat >look.html <<'HTML'
<title>wait</title><iframe id=f width=390 height=900 src="/#a%2Fr1&b%2Fr2"></iframe><script>
const out = [], d = () => f.contentDocument, rows = () => [...d().querySelectorAll("#rows tr")].map(r => r.className ? r.textContent : r.querySelector("label").textContent).join(",");
const set = (id, v) => { const e = d().getElementById(id); e.value = v; e.dispatchEvent(new Event("input")); }, wait = setInterval(() => {
  if (!d() || !d().querySelector(".legend span")) return;
  clearInterval(wait);
  try {
    const box = d().querySelector(".box"), root = d().documentElement, seen = new Set(), draw = () => seen.add(d().querySelector("canvas").toDataURL());
    out.push(root.scrollWidth <= root.clientWidth ? "fits" : "is too wide", box.clientHeight < 340 && box.scrollHeight > 1000 ? "scrolls" : "fills the page");
    draw(); set("axis", "tokens"); draw(); set("axis", "time"); draw(); set("smooth", "0.9"); draw();
    out.push(seen.size);
    set("filter", "A/ r1 finished"); d().querySelector("#columns button").click(); out.push(rows());
    d().querySelector("#columns button").click(); out.push(rows()); set("filter", "/r7"); set("group", "folder"); out.push(rows());
  } catch (e) { out.push(String(e)); }
  document.title = out.join(" "); }, 50);</script>
HTML
  python3 - "$(port_of "$url")" >proxy.out 2>proxy.err <<'PY' &
import http.server, sys, urllib.request
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        a = None if self.path == "/look" else urllib.request.urlopen("http://127.0.0.1:" + sys.argv[1] + self.path)
        body = a.read() if a else open("look.html", "rb").read()
        self.send_response(200)
        self.send_header("Content-Type", a.headers["Content-Type"] if a else "text/html")
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
print(server.server_port, flush=True)
server.serve_forever()
PY
  other=$!
  await $other test -s proxy.out || bad "the proxy does not start"
  timeout 60 "$browser" --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync \
    --user-data-dir="$SCRATCH/profile" --virtual-time-budget=8000 --dump-dom "http://127.0.0.1:$(cat proxy.out)/look" >dom 2>/dev/null
  kill $other $server
  other=0 server=0
  title=$(sed -n 's/.*<title>\(.*\)<\/title>.*/\1/p' dom | head -1)
  if [ -z "$title" ]; then echo "the browser does not start here: the page was not opened"
  else
    [ "$title" = "fits scrolls 4 a/r1,a/r10,a/r11,a/r12 a/r12,a/r11,a/r10,a/r1 a (1)compare,a/r7,b (1)compare,b/r7,c (1)compare,c/r7,d (1)compare,d/r7" ] || bad "in the browser at 390 pixels: $title"
  fi
else echo "no browser is installed: the page was not opened"; fi

# train --serve: the page of a run that trains; it ends with the run, also if that is killed
train=("$LOCKSTEP" train --data . --model tiny --num_layers 1 --seq_length 32 --train_micro_batch_size_per_gpu 2)
expect 2 "not a port" "${train[@]}" --checkpoint_path r --serve 70000
expect 2 "needs --serve" "${train[@]}" --checkpoint_path r --serve_address 0.0.0.0
# its server runs when no other process wants the core: on a busy machine an answer takes time
is_running() { curl_free "http://127.0.0.1:$port/api/runs" | grep -q '"id": "live", "state": "running", "step": [0-9]'; }
for how in TERM KILL; do
  rm -rf live
  "${train[@]}" --checkpoint_path live --max_steps 1000000 --serve >log 2>err &
  server=$!
  await $server grep -q "live page: http" err || bad "train --serve: $(cat err)"
  port=$(port_of "$(grep -o 'http://[^ ]*' err)")
  await $server is_running || bad "the run is not running"
  page=$(pgrep -P $server)
  grep -q "^policy *: *5$" /proc/"$page"/sched 2>/dev/null || [ "$(ps -o cls= -p "$page")" = IDL ] || bad "the server has no idle priority"
  kill -$how $server
  wait $server
  server=0
  for _ in $(seq 600); do kill -0 "$page" 2>/dev/null || break; sleep 0.1; done
  kill -0 "$page" 2>/dev/null && bad "the server is still alive after SIG$how"
  [ $how = KILL ] || grep -q '"state": "stopped"' live/events.jsonl || bad "no stop in events.jsonl"
done
wait $slow || bad "slow client: $(cat slow.out)"
done_tests
