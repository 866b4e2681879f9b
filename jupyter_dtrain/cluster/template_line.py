"""The guard's line to the process that engines are forked from. Imported by the guard, so of the standard library alone."""

from __future__ import annotations

import fcntl
import json
import os
from typing import Any

REPLIES = 3  # file descriptor on which the template says whom it has forked
KERNEL, LINE = 4, 5  # file descriptors of the template where it may outlive its guard: a pidfd of the kernel, and a socket to it
REQUESTS_SIZE = 1 << 20  # bytes of requests that the template, which may be busy, leaves unread
F_SETPIPE_SZ = 1031  # Linux's, which Python has from 3.10 in name on some systems only


def environment_changes(old: dict[str, str], new: dict[str, str]) -> dict[str, Any]:
    """Return what makes the environment `new` of `old`: variables to set, ``"env"``, and those to ``"unset"``."""
    return {"env": {key: value for key, value in new.items() if old.get(key) != value}, "unset": [key for key in old if key not in new]}


class Template:
    """The guard's line to the process that engines are forked from, which runs in the environment `env`.

    It has `kernel` and `line` as well, where there are both: with one it knows of the kernel's end, on the other the kernel speaks to it.
    """

    def __init__(self, env: dict[str, str], kernel: int | None, line: int | None) -> None:
        self.env = env
        self.outlives = () if kernel is None or line is None else (kernel, line)
        self.pid = 0
        self.waiting: dict[str, dict[str, Any]] = {}  # what was asked for and has not been forked, by name
        self.input = b""
        self.its_requests, self.requests = os.pipe()
        self.replies, self.its_replies = os.pipe()
        try:
            fcntl.fcntl(self.requests, F_SETPIPE_SZ, REQUESTS_SIZE)
        except OSError:
            pass  # the usual 64 KiB do for 100 engines

    def connect(self) -> None:
        """Give this process, which becomes the template, its ends."""
        # By way of numbers that are out of the way: what is to be 4 may be 3 now, and what is 4 is to be 5.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 16) for end in (self.its_requests, self.its_replies, *self.outlives)]
        for end, place in zip(ends, (0, REPLIES, KERNEL, LINE), strict=False):
            os.dup2(end, place)
            os.close(end)

    def start(self, pid: int) -> None:
        """Keep the other ends, here in the guard."""
        self.pid = pid
        os.close(self.its_requests)
        os.close(self.its_replies)

    def ask(self, **request: Any) -> None:
        """Ask for a process."""
        self.waiting[request["name"]] = request
        # What comes after the interpreter and `-m` with its module are the arguments.
        line = json.dumps({**request, **environment_changes(self.env, request["env"]), "argv": request["argv"][3:]})
        try:
            os.write(self.requests, line.encode() + b"\n")
        except OSError:
            pass  # it has just ended, which will be seen

    def forked(self) -> list[tuple[str, int]]:
        """Return what has been forked since the last call."""
        *lines, self.input = (self.input + os.read(self.replies, 1 << 16)).split(b"\n")
        found = []
        for line in lines:
            reply = json.loads(line)
            self.waiting.pop(reply["name"], None)
            found.append((reply["name"], reply["pid"]))
        return found

    def end(self) -> list[dict[str, Any]]:
        """Return what was asked for in vain."""
        os.close(self.requests)
        os.close(self.replies)
        return list(self.waiting.values())
