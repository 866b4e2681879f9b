"""The guard's connection to the template. Imported by the guard, so it uses the standard library only."""

from __future__ import annotations

import fcntl
import json
import os
from typing import Any

REPLIES = 3  # file descriptor on which the template reports forked processes
KERNEL, LINE = 4, 5  # descriptors of a template that may outlive its guard: a pidfd of the kernel, and a socket to it
REQUESTS_SIZE = 1 << 20  # bytes of requests that a busy template may leave unread
F_SETPIPE_SZ = 1031  # Linux's constant, which Python does not define everywhere


def environment_changes(old: dict[str, str], new: dict[str, str]) -> dict[str, Any]:
    """Return the changes from environment `old` to `new`: variables to set (``"env"``) and to remove (``"unset"``)."""
    return {"env": {key: value for key, value in new.items() if old.get(key) != value}, "unset": [key for key in old if key not in new]}


class Template:
    """The guard's connection to the template, which runs in the environment `env`.

    With `kernel` and `line`, the template can outlive the guard: the pidfd tells of the kernel's end, and `line` is a socket to the kernel.
    """

    def __init__(self, env: dict[str, str], kernel: int | None, line: int | None) -> None:
        self.env = env
        self.outlives = () if kernel is None or line is None else (kernel, line)
        self.pid = 0
        self.waiting: dict[str, dict[str, Any]] = {}  # requests by name that were not forked yet
        self.input = b""
        self.its_requests, self.requests = os.pipe()
        self.replies, self.its_replies = os.pipe()
        try:
            fcntl.fcntl(self.requests, F_SETPIPE_SZ, REQUESTS_SIZE)
        except OSError:
            pass  # the default of 64 KiB is enough for 100 engines

    def connect(self) -> None:
        """Set up the template's ends in this process, which becomes the template."""
        # Through high descriptor numbers first, as the targets may be in use by other ends.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 16) for end in (self.its_requests, self.its_replies, *self.outlives)]
        for end, place in zip(ends, (0, REPLIES, KERNEL, LINE), strict=False):
            os.dup2(end, place)
            os.close(end)

    def start(self, pid: int) -> None:
        """Close the template's ends in the guard."""
        self.pid = pid
        os.close(self.its_requests)
        os.close(self.its_replies)

    def ask(self, **request: Any) -> None:
        """Request a process."""
        self.waiting[request["name"]] = request
        # The arguments follow the interpreter, `-m` and the module.
        line = json.dumps({**request, **environment_changes(self.env, request["env"]), "argv": request["argv"][3:]})
        try:
            os.write(self.requests, line.encode() + b"\n")
        except OSError:
            pass  # it has just ended, which will be noticed

    def forked(self) -> list[tuple[str, int]]:
        """Return the names and pids of processes forked since the last call."""
        *lines, self.input = (self.input + os.read(self.replies, 1 << 16)).split(b"\n")
        found = []
        for line in lines:
            reply = json.loads(line)
            self.waiting.pop(reply["name"], None)
            found.append((reply["name"], reply["pid"]))
        return found

    def end(self) -> list[dict[str, Any]]:
        """Close the connection; return the requests that were not fulfilled."""
        os.close(self.requests)
        os.close(self.replies)
        return list(self.waiting.values())
