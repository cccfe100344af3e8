#!/usr/bin/env python3
"""A link between two hosts of tests/support/hosts that loses, damages, delays and reorders packets, for kernels without netem.

  bad_link.py SOCKET SIDE PEER_ADDRESS OWN_ADDRESS [--loss P] [--corrupt P] [--reorder P] [--delay_ms MS] [--seed N]

Runs on both hosts (SIDE is 0 on one of them and 1 on the other; SOCKET is a path that both see), until the file SOCKET.end exists. On each host, the route to
PEER_ADDRESS goes through a TUN device; its packets are sent to the other side, except those that the probabilities select. A damaged packet has one flipped bit
after the IP header, which TCP's checksum finds. At the end it prints how many packets were sent, lost, damaged and reordered.
"""

import argparse
import fcntl
import heapq
import os
import random
import select
import socket
import struct
import subprocess
import time

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


def open_tun(name):
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    return fd


def damaged(r, packet):
    head = 4 * (packet[0] & 15)
    if packet[0] >> 4 != 4 or len(packet) <= head:
        return packet
    at = r.randrange(8 * head, 8 * len(packet))
    return packet[: at // 8] + bytes([packet[at // 8] ^ 1 << at % 8]) + packet[at // 8 + 1 :]


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("socket")
    p.add_argument("side", type=int, choices=(0, 1))
    p.add_argument("peer")
    p.add_argument("own")
    p.add_argument("--loss", type=float, default=0)
    p.add_argument("--corrupt", type=float, default=0)
    p.add_argument("--reorder", type=float, default=0)
    p.add_argument("--delay_ms", type=float, default=0)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    r = random.Random(a.seed * 2 + a.side)
    unix = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    unix.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    unix.bind(f"{a.socket}.{a.side}")
    unix.setblocking(False)
    tun = open_tun("bad0")
    for words in ("link set bad0 mtu 1500 up", f"route replace {a.peer}/32 dev bad0 src {a.own}"):
        subprocess.run(["ip", *words.split()], check=True)
    count = dict(sent=0, lost=0, damaged=0, reordered=0)
    print("ready", flush=True)
    queue, number = [], 0  # (time, number, packet)
    while not os.path.exists(f"{a.socket}.end"):
        wait = max(0, queue[0][0] - time.monotonic()) if queue else 0.5
        ready, _, _ = select.select([tun, unix], [], [], wait)
        if tun in ready:
            packet = os.read(tun, 65536)
            at = time.monotonic() + a.delay_ms / 1e3
            if r.random() < a.loss:
                count["lost"] += 1
                packet = b""
            elif r.random() < a.corrupt:
                count["damaged"] += 1
                packet = damaged(r, packet)
            if packet and r.random() < a.reorder:
                count["reordered"] += 1
                at += 3e-3
            if packet:
                number += 1
                heapq.heappush(queue, (at, number, packet))
        if unix in ready:
            os.write(tun, unix.recv(65536))
        while queue and queue[0][0] <= time.monotonic():
            try:
                unix.sendto(queue[0][2], f"{a.socket}.{1 - a.side}")
                count["sent"] += 1
            except (BlockingIOError, FileNotFoundError, ConnectionRefusedError):
                count["lost"] += 1  # as a full queue of a switch
            heapq.heappop(queue)
    print(" ".join(f"{k} {v}" for k, v in count.items()), flush=True)


if __name__ == "__main__":
    main()
