"""A network between the hosts of the tests that is as slow as a real one: a rate and a delay for each host's link.

Linux has a queue for delays, netem, which not every kernel is built with. So this is a switch in user space. It takes the place of the
bridge between the hosts: each host's ``eth0`` becomes the end of a TAP device, and one process passes frames on, each when it is due.
A link takes its rate in both directions at once, and drops what would wait longer than `QUEUE`, as a switch does.

    with VirtualHosts(3) as lab, ShapedLinks(lab) as links:
        links.shape(rate=12.5e6, delay=0.005)   # 100 Mbit/s, 5 ms one way
        links.shape()                           # as fast as it goes
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import itertools
import json
import os
import select
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.hosts.virtual_hosts import VirtualHosts

QUEUE = 0.05
"""Seconds that a frame waits for a link at most."""
FRAME = 16384
"""Bytes that hosts put together to one frame at most: a small message waits for no more than this of a large one."""
_SET_INTERFACE, _SET_OFFLOAD, _NEW_NETWORK = 0x400454CA, 0x400454D0, 0x40000000
_TAP, _NO_PACKET_INFORMATION, _OFFLOAD_HEADER = 0x2, 0x1000, 0x4000
_HEADER = 10  # bytes before each frame, which say how it is to be cut and what of it has no checksum yet
_CHECKSUMS_AND_TCP = 1 | 2
_MOST = 1 << 17  # bytes of a frame


class ShapedLinks:
    """The links of the hosts of `lab`, which are not shaped yet."""

    def __init__(self, lab: VirtualHosts) -> None:
        ends = [f"{host.pid}:{host.address}" for host in lab.up]
        self._switch = subprocess.Popen(
            [sys.executable, "-m", "bench.shaped_links", *ends],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def _answer(self) -> None:
        assert self._switch.stdout is not None
        if not self._switch.stdout.readline():
            raise RuntimeError("The switch has ended.")

    def shape(self, rate: float | None = None, delay: float = 0.0) -> None:
        """Let each host's link carry `rate` bytes a second each way, and be `delay` seconds long."""
        assert self._switch.stdin is not None
        self._switch.stdin.write(json.dumps({"rate": rate, "delay": delay}) + "\n")
        self._switch.stdin.flush()
        self._answer()

    def __enter__(self) -> ShapedLinks:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._switch.stdin is not None
        self._switch.stdin.close()
        self._switch.wait()


class _Switch:
    """Passes frames on between the files `taps`, one for each host."""

    def __init__(self, taps: list[int]) -> None:
        self._taps = taps
        self._rate: float | None = None
        self._delay = 0.0
        self._to: dict[bytes, int] = {}  # hosts by the addresses of their cards
        self._out, self._in = [0.0] * len(taps), [0.0] * len(taps)  # when each host's link has sent, and brought, all so far
        self._waiting: list[tuple[float, int, int, bytes]] = []
        self._count = itertools.count()

    def run(self) -> None:
        """Pass frames on until the standard input ends."""
        poll = select.epoll()
        for file in (0, *self._taps):
            poll.register(file, select.EPOLLIN)
        while True:
            self._deliver()
            wait = max(0.0, self._waiting[0][0] - time.monotonic()) if self._waiting else -1
            for file, _ in poll.poll(wait):
                if file:
                    self._take(self._taps.index(file))
                elif line := sys.stdin.readline():
                    said: dict[str, Any] = json.loads(line)
                    self._rate, self._delay = said["rate"], said["delay"]
                    print("shaped", flush=True)
                else:
                    return

    def _take(self, source: int) -> None:
        for _ in range(64):
            try:
                frame = os.read(self._taps[source], _MOST)
            except BlockingIOError:
                return
            head = _HEADER
            self._to[frame[head + 6 : head + 12]] = source
            target = self._to.get(frame[head : head + 6])
            for to in range(len(self._taps)) if target is None else (target,):
                if to != source:
                    self._send(source, to, frame)

    def _send(self, source: int, target: int, frame: bytes) -> None:
        """Let a frame be due when its last byte has come: it goes out on one link and in on the other, a byte after the other."""
        now = time.monotonic()
        if self._rate is None:
            due = now + self._delay
        else:
            took = (len(frame) - _HEADER) / self._rate
            if self._out[source] - now > QUEUE:
                return
            begins = max(now, self._out[source])
            self._out[source] = begins + took
            arrives = begins + self._delay
            if self._in[target] - arrives > QUEUE:
                return
            due = self._in[target] = max(arrives, self._in[target]) + took
        heapq.heappush(self._waiting, (due, next(self._count), target, frame))

    def _deliver(self) -> None:
        while self._waiting and self._waiting[0][0] <= time.monotonic():
            _, _, target, frame = heapq.heappop(self._waiting)
            try:
                os.write(self._taps[target], frame)
            except OSError:
                pass  # the host is gone


def _tap_in(pid: str, address: str) -> int:
    """Return the end of a new ``eth0`` of the host whose first process is `pid`."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(f"/proc/{pid}/ns/net").open() as network:
        if libc.setns(network.fileno(), _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"The network of process {pid} cannot be entered")
    subprocess.run(["ip", "link", "del", "eth0"], check=True)
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, _SET_INTERFACE, struct.pack("16sH22x", b"eth0", _TAP | _NO_PACKET_INFORMATION | _OFFLOAD_HEADER))
    fcntl.ioctl(tap, _SET_OFFLOAD, _CHECKSUMS_AND_TCP)
    for command in (f"addr add {address}/24 brd + dev eth0", f"link set eth0 gso_max_size {FRAME}", "link set eth0 up txqueuelen 2000"):
        subprocess.run(["ip", *command.split()], check=True)
    return tap


def main() -> None:
    """Be the switch."""
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))  # a network waits for no core
    taps = [_tap_in(*end.split(":")) for end in sys.argv[1:]]
    print("up", flush=True)
    _Switch(taps).run()


if __name__ == "__main__":
    main()
