"""The template outlives its guard and becomes the next one, so that torch is not imported again.

Once its imports are done, it no longer dies with the guard, but watches the kernel through a pidfd and dies with that. When the guard is
gone, the kernel may send it, over a socket pair, the arguments of another guard. It then forks itself and becomes the guard of the
fork, which forks engines from now on and is the next to become a guard. Parent and fork share memory. A socket pair has no name, so
only processes that were given an end can use it.

``successor.py`` is the kernel's side. It sends one JSON message with four file descriptors: the guard's input, output and log, and the
next template's end of a socket pair. ``{"kernel", "folders", "argv", "env", "read_once", "whatever"}``: `argv` and `env` are those of
this process. The new cluster may have another environment, except for variables that are read once: `read_once` has prefixes of their
names, and `whatever` names exceptions.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import signal
import socket
import traceback
from typing import Any

from .guard import Guard
from .process_tree import PR_SET_PDEATHSIG, prctl
from .template_line import KERNEL, LINE, REPLIES, Template, environment_changes

LIMIT = 30.0
"""Seconds to wait for the kernel's message. During a run it comes at once; without a run nobody needs this process."""
MESSAGE_SIZE = 1 << 20  # bytes
READY = "ready"
"""Event that a promoted guard sends when it accepts requests."""


def receive(line: socket.socket, size: int, num_files: int, flags: int = 0) -> tuple[bytes, list[int]]:
    """Return a message and its file descriptors, both empty at the end. Python's own function ignores `flags` before 3.12."""
    found = array.array("i")
    message, ancillary, _, _ = line.recvmsg(size, socket.CMSG_LEN(num_files * found.itemsize), flags | socket.MSG_CMSG_CLOEXEC)
    for _level, _kind, data in ancillary:
        found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return message, list(found)


def may_outlive_guard() -> bool:
    """Return whether this process has the descriptors to outlive its guard."""
    try:
        os.fstat(KERNEL), os.fstat(LINE)
    except OSError:
        return False
    return True


def outlive_guard() -> None:
    """Stop dying with the guard, and send this process's pid and pidfd to the kernel."""
    for place in (KERNEL, LINE):
        os.set_inheritable(place, False)
    prctl()(PR_SET_PDEATHSIG, 0)
    own = os.pidfd_open(os.getpid())
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(LINE)) as line:  # if nobody is there, this is noticed soon
        socket.send_fds(line, [str(os.getpid()).encode()], [own])
    os.close(own)


def read_requests(size: int) -> bytes:
    """Return input from the guard; empty if the guard or the kernel is gone."""
    return b"" if KERNEL in select.select([0, KERNEL], [], [])[0] else os.read(0, size)


def become_guard() -> int | None:
    """Wait for the kernel's message after the guard's death. Return the new guard's pid in a fork, ``None`` if none is needed."""
    ready = select.select([KERNEL, LINE], [], [], LIMIT)[0]
    if KERNEL in ready or LINE not in ready:
        return None
    message, ends = b"", list[int]()
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(LINE)) as line:
        message, ends = receive(line, MESSAGE_SIZE, 4)
    if len(ends) < 4:
        return None  # the connection has ended: the cluster was stopped
    return _promoted(json.loads(message), *ends)


def _promoted(message: dict[str, Any], requests: int, events: int, log: int, line: int) -> int:
    template = Template(message["env"], KERNEL, line)
    guard = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        template.connect()
        for end in (template.its_requests, template.its_replies, template.requests, template.replies):
            os.close(end)
        for end in (requests, events, log, line):
            os.close(end)
        outlive_guard()
        return guard
    try:
        for end, place in ((requests, 0), (events, 1), (log, 2), (line, LINE)):
            os.dup2(end, place)
            os.close(end)
        for place in (KERNEL, LINE):
            os.set_inheritable(place, False)
        os.close(REPLIES)
        template.start(pid)
        os.chdir(message["folders"][0])
        PromotedGuard(message, template).run()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


class PromotedGuard(Guard):
    """A guard that has a template already: a fork of this process.

    Parameters
    ----------
    message : dict
        The kernel's message.
    template : Template
        The connection to the fork, which has the former cluster's environment.
    """

    def __init__(self, message: dict[str, Any], template: Template) -> None:
        super().__init__(message["kernel"], message["folders"], LINE, KERNEL)
        self._argv, self._fork = message["argv"], template
        self._prefixes, self._whatever = tuple(message["read_once"]), message["whatever"]
        self._unused = True

    def run(self) -> None:
        """Serve like any guard."""
        self.report(event=READY)
        super().run()

    def start(self, *, name: str, argv: list[str], env: dict[str, str], cwd: str, log: str, how: str) -> None:
        """Start one process. The first template is the fork, if a new one would be equivalent."""
        if how == "template" and self._unused:
            self._unused = False
            if argv == self._argv and self._read_once(env) == self._read_once(self._fork.env):
                self._serve_with_fork(name, env, log)
                return
            if self._fork.pid not in self.strays:  # not reaped yet, so its pid was not reused
                os.kill(self._fork.pid, signal.SIGKILL)
            self._fork.end()
        super().start(name=name, argv=argv, env=env, cwd=cwd, log=log, how=how)

    def _serve_with_fork(self, name: str, env: dict[str, str], log: str) -> None:
        line = json.dumps({**environment_changes(self._fork.env, env), "log": log})
        with contextlib.suppress(OSError):  # it has just ended, which will be noticed
            os.write(self._fork.requests, line.encode() + b"\n")
        self._fork.env, self.template = env, self._fork
        self.needed.add(self._fork.pid)
        self.known(name, self._fork.pid)

    def _read_once(self, env: dict[str, str]) -> dict[str, str]:
        """Return the variables that are read while the template imports, so that a fork cannot change them."""
        return {name: value for name, value in env.items() if name.startswith(self._prefixes) and name not in self._whatever}
