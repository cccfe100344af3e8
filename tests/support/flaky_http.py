#!/usr/bin/env python3
"""A web server for tests of downloads. flaky_http.py FILE PORT_FILE: serves the bytes of FILE under any name, in ways that the first part of the
path chooses: whole, drop (closes the connection after 100,000 bytes), norange (like whole, but ignores ranges and closes the first connection
early), busy (503 to the first two requests), slow (300,000 bytes, the rest a minute later), gone (404), moved (redirects to whole), nolength (like drop, but
without Content-Length), endless (the bytes again and again, without Content-Length), login (a short page instead), shifted and unnamed (closes the first connection
early and answers a range with another start, or with 206 but without Content-Range), changed (has an ETag; closes the first connection early, after that it has other
bytes under another ETag). Writes its port."""
import http.server
import os
import sys
import threading
import time

body = open(sys.argv[1], "rb").read()
count = {}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, code, headers=()):
        self.send_response(code)
        for k, v in headers:
            self.send_header(k, v)
        self.end_headers()

    def do_GET(self):
        mode = self.path.split("/")[1]
        n = count[mode] = count.get(mode, 0) + 1
        if mode == "gone":
            return self.answer(404, [("Content-Length", "0")])
        if mode == "moved":
            return self.answer(302, [("Location", "/whole/x"), ("Content-Length", "0")])
        if mode == "login":
            self.answer(200, [("Content-Length", "18")])
            return self.wfile.write(b"<html>login</html>")
        if mode == "endless":
            self.answer(200, [("Connection", "close")])
            while True:
                self.wfile.write(body)
        if mode == "busy" and n <= 2:
            return self.answer(503, [("Content-Length", "0")])
        first = 0
        wanted = self.headers.get("Range")
        tag = []
        if mode == "changed":
            tag = [("ETag", '"first"' if n == 1 else '"second"')]
            if self.headers.get("If-Range", tag[0][1]) != tag[0][1]:
                wanted = None
        if wanted and mode != "norange":
            first = int(wanted.split("=")[1].split("-")[0])
            if first >= len(body):
                return self.answer(416, [("Content-Length", "0"), ("Content-Range", f"bytes */{len(body)}")])
            if mode == "unnamed":
                self.answer(206, [("Content-Length", str(len(body) - first))])
                return self.wfile.write(body[first:])
            if mode == "shifted":
                self.answer(206, [("Content-Length", str(len(body) - 7)), ("Content-Range", f"bytes 7-{len(body) - 1}/{len(body)}")])
                return self.wfile.write(body[7:])
            length = [] if mode == "nolength" else [("Content-Length", str(len(body) - first))]
            self.answer(206, length + [("Content-Range", f"bytes {first}-{len(body) - 1}/{len(body)}")])
        else:
            self.answer(200, [("Connection", "close")] if mode == "nolength" else [("Content-Length", str(len(body)))] + tag)
        part = body[first:]
        if mode == "changed" and n == 1:
            part = bytes(len(body))
        if mode in ("drop", "nolength") or (mode in ("norange", "changed", "shifted", "unnamed") and n == 1):
            self.wfile.write(part[:100000])
            self.close_connection = True
        elif mode == "slow":
            self.wfile.write(part[:300000])
            self.wfile.flush()
            time.sleep(60)  # the client is stopped meanwhile
            self.wfile.write(part[300000:])
        else:
            self.wfile.write(part)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # clients that are killed


server = Server(("127.0.0.1", 0), Handler)
with open(sys.argv[2] + ".tmp", "w") as f:
    f.write(str(server.server_port))
os.rename(sys.argv[2] + ".tmp", sys.argv[2])
threading.Thread(target=lambda: (time.sleep(300), os._exit(0)), daemon=True).start()  # never outlives its test for long
server.serve_forever()
