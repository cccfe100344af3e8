#!/usr/bin/env python3
"""live_client.py PORT COMMAND...: what tests/cli/serve.sh asks a server, with plain sockets and http.client.

  checks TOKEN    every page, malformed requests, other methods, names that are no runs; prints what is wrong, exit code 1
  metrics FILE    a check of the text format of Prometheus, in the way of promtool check metrics
  slow            sends one byte per second until it is disconnected; fails after 40 s
  load SECONDS    100 requests per second, among them malformed ones, and clients that send one byte per second; prints the counts"""
import http.client
import itertools
import json
import re
import socket
import sys
import threading
import time

bad = 0


def check(ok, *words):
    global bad
    if not ok:
        bad += 1
        print("FAILED:", *words)


def get(port, path, headers=None, method="GET", host="127.0.0.1"):
    c = http.client.HTTPConnection(host, port, timeout=20)
    c.request(method, path, headers=headers or {})
    a = c.getresponse()
    body = a.read()
    c.close()
    return a.status, dict((k.lower(), v) for k, v in a.getheaders()), body


def raw(port, data, wait=5):
    """The first line of the answer to these bytes; "": the connection was closed."""
    s = socket.create_connection(("127.0.0.1", port), timeout=wait)
    try:
        s.sendall(data)
        return s.recv(4096).split(b"\r\n")[0].decode("latin1")
    except (TimeoutError, ConnectionError) as e:
        return "" if isinstance(e, ConnectionError) else "timeout"
    finally:
        s.close()


def check_metrics(text):
    """Names, HELP and TYPE before the samples of a metric, one group per metric, escaped labels, no sample twice, numbers."""
    sample = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[a-zA-Z_]\w*="(?:[^"\\\n]|\\[\\"n])*"(?:,[a-zA-Z_]\w*="(?:[^"\\\n]|\\[\\"n])*")*\})? (\S+)$')
    check(text.endswith("\n"), "metrics do not end with a line end")
    helped, typed, seen, current, closed = set(), {}, set(), None, set()
    for line in text.split("\n")[:-1]:
        m = re.fullmatch(r"# (HELP|TYPE) ([a-zA-Z_:][a-zA-Z0-9_:]*) (.+)", line)
        if m and m[1] == "HELP":
            check(m[2] not in helped, "HELP twice:", line)
            helped.add(m[2])
            continue
        if m:
            check(m[2] in helped and m[2] not in typed and m[3] in ("gauge", "counter"), "TYPE:", line)
            typed[m[2]] = m[3]
            if current:
                closed.add(current)
            current = m[2]
            continue
        s = sample.match(line)
        check(bool(s), "not a sample:", line)
        if not s:
            continue
        check(s[1] in typed and s[1] == current and s[1] not in closed, "a sample outside its group:", line)
        check((s[1], s[2]) not in seen, "a sample twice:", line)
        check(re.fullmatch(r"[-+]?(\d+(\.\d*)?([eE][-+]?\d+)?)", s[3]) is not None, "not a number:", line)
        check(s[1].startswith("lockstep_") and (typed.get(s[1]) != "counter" or s[1].endswith("_total")), "name:", line)
        seen.add((s[1], s[2]))
    return seen


def checks(port, token):
    auth = {"Authorization": "Bearer " + token} if token else {}
    status, head, body = get(port, "/", auth)
    check(status == 200 and head["content-type"].startswith("text/html"), "the page:", status)
    text = body.decode()
    check(not re.search(r'(src|href)="?(https?:)?//', text) and "@import" not in text, "the page loads something from elsewhere")
    for name in ("content-security-policy", "x-content-type-options", "x-frame-options", "cache-control"):
        check(name in head, "no header", name)
    status, _, body = get(port, "/api/runs", auth)
    runs = {r["id"]: r for r in json.loads(body)["runs"]}
    check(status == 200 and len(runs) >= 1, "runs:", status, list(runs))
    for name in runs:
        quoted = "".join(f"%{b:02x}" for b in name.encode())
        run = {"read": 0}
        while run["read"] < 0.999:  # a long file is read in turns
            status, head, body = get(port, "/api/run?id=" + quoted, auth)
            run = json.loads(body)
        check(status == 200 and run["id"] == name and len(run["x"]) == len(run["series"]["loss"]["y"]), "run", name)
        status, _, body = get(port, f"/api/run?id={quoted}&generation={run['generation']}&from={run['next']}", auth)
        check(status == 200 and len(json.loads(body)["x"]) <= max(1, len(run["x"])), "increment of", name)
    for path in ("/api/run?id=..%2f..%2fetc", "/api/run?id=%00", "/etc/passwd", "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/api/run?id=" + "x" * 900):
        status, _, body = get(port, path, auth)
        check(status in (400, 404) and b"root:" not in body, path[:60], status)
    check(get(port, "/api/run", auth)[0] == 400, "a run without id")
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"):
        check(get(port, "/", auth, method)[0] == 405, method)
    status, head, body = get(port, "/", auth, "HEAD")
    check(status == 200 and not body and int(head["content-length"]) > 1000, "HEAD")
    check(get(port, "/api/runs", {**auth, "Content-Length": "9999999999"})[0] == 400, "a GET with a body")
    line = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
    for name, data in {"no HTTP": b"hello\r\n\r\n", "a long line": b"GET /" + b"a" * 60000 + b" HTTP/1.1\r\n\r\n",
                       "long headers": line + b"X: " + b"y" * 60000 + b"\r\n\r\n", "many headers": line + b"A: b\r\n" * 9000 + b"\r\n",
                       "a bad version": b"GET / HTTP/9.9\r\n\r\n", "TLS": bytes.fromhex("160301020001000001fc0303") + b"\x55" * 300 + b"\r\n\r\n"}.items():
        answer = raw(port, data)
        check(answer == "" or " 4" in answer or " 5" in answer, name, repr(answer))
    if not token:
        for host, ok in ((f"localhost:{port}", True), ("[::1]:9", True), ("LOCALHOST", True), ("evil.example", False), ("127.0.0.1.evil.example", False), ("[::1].evil.example", False), ("", False)):
            status = get(port, "/api/runs", {"Host": host})[0]
            check((status == 200) == ok, "Host", host, status)
    else:
        for path, headers, want in (("/", {}, 401), ("/metrics", {}, 401), ("/api/runs?token=" + "0" * 32, {}, 401), ("/api/runs?token=" + token[:-1], {}, 401),
                                    ("/api/runs?token=" + token, {}, 200), ("/api/runs", {"Authorization": "Bearer " + token}, 200), ("/api/runs", {"Authorization": "Bearer x"}, 401)):
            status, head, body = get(port, path, headers)
            check(status == want and (want == 200 or token.encode() not in body), "token", path[:20], status)
        cookie = get(port, "/?token=" + token)[1]["set-cookie"].split(";")
        check("HttpOnly" in "".join(cookie) and get(port, "/api/runs", {"Cookie": cookie[0]})[0] == 200, "cookie", cookie[1:])
    status, head, body = get(port, "/metrics", auth)
    check(status == 200 and "version=0.0.4" in head["content-type"], "metrics:", status)
    seen = check_metrics(body.decode())
    check(any(name == "lockstep_loss" for name, _ in seen), "no lockstep_loss")


def slow_client(port):
    """Sends a header byte by byte. The server must hang up; until then it must answer others at once."""
    s = socket.create_connection(("127.0.0.1", port), timeout=40)
    begin = time.time()
    try:
        s.sendall(b"GET / HTTP/1.1\r\nX: ")
        while time.time() < begin + 40:
            s.sendall(b"y")
            asked = time.time()
            check(get(port, "/api/runs")[0] == 200 and time.time() - asked < 10, "another client waits")
            s.settimeout(1)
            try:
                if not s.recv(100):
                    return
            except TimeoutError:
                pass
    except ConnectionError:
        return
    check(False, "a slow client is not disconnected")


def load(port, seconds):
    """Half of the requests are of the page's kind, the rest is malformed or hangs up; 20 clients send one byte per second."""
    stop, counts = time.time() + seconds, {}

    def slow():
        while time.time() < stop:
            try:
                s = socket.create_connection(("127.0.0.1", port), timeout=5)
                for b in b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: " + b"a" * 100:
                    s.sendall(bytes([b]))
                    time.sleep(min(1, max(0, stop - time.time())))
                    if time.time() >= stop:
                        break
                s.close()
            except OSError:
                counts["slow ended"] = counts.get("slow ended", 0) + 1

    for _ in range(20):
        threading.Thread(target=slow, daemon=True).start()
    kinds = ["/api/runs", "/metrics", "/api/run?id=" + sys.argv[4] if len(sys.argv) > 4 else "/", "/", None, "/nothing", "POST", "close", "/api/runs", "/metrics"]
    begin, turns, lock = time.time(), itertools.count(), threading.Lock()

    def ask(kind):
        try:
            if kind is None:
                what = "malformed " + raw(port, b"\x00\xff garbage \r\n\r\n", 0.05)
            elif kind == "close":
                s = socket.create_connection(("127.0.0.1", port), timeout=5)
                s.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                s.close()
                what = "hung up"
            else:
                what = get(port, "/" if kind == "POST" else kind, method="POST" if kind == "POST" else "GET")[0]
        except (OSError, http.client.HTTPException) as e:
            what = type(e).__name__
        with lock:
            counts[what] = counts.get(what, 0) + 1

    def work():
        while time.time() < stop:
            n = next(turns)
            time.sleep(max(0, begin + n / 100 - time.time()))
            ask(kinds[n % len(kinds)])

    workers = [threading.Thread(target=work) for _ in range(12)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    n = sum(v for k, v in counts.items() if k != "slow ended")
    print(json.dumps({"requests": n, "per_second": round(n / (time.time() - begin), 1), "answers": {str(k): v for k, v in counts.items()}}))


def main():
    port, command = int(sys.argv[1]), sys.argv[2]
    if command == "checks":
        checks(port, sys.argv[3] if len(sys.argv) > 3 else "")
    elif command == "metrics":
        check_metrics(open(sys.argv[3]).read())
    elif command == "slow":
        slow_client(port)
    elif command == "load":
        load(port, float(sys.argv[3]))
    sys.exit(1 if bad else 0)


main()
