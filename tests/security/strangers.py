"""Another user of the same machine, for tests: a process that has given up root for a user that owns nothing."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

NOBODY = 65534
_CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
needs_another_user = pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="becoming another user takes root, on Linux")


@contextlib.contextmanager
def stranger(attack: Callable[..., Any], *args: Any) -> Iterator[Callable[[], Any]]:
    """Let ``attack(*args)`` run as another user, beside the block; what is yielded waits for what it returns, which JSON can hold."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(writing, json.dumps(attack(*args)).encode())
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(writing)
    answer: list[Any] = []

    def wait() -> Any:
        if not answer:
            with os.fdopen(reading, "rb") as end:
                answer.append(json.loads(end.read()))
            os.waitpid(pid, 0)
        return answer[0]

    try:
        yield wait
    finally:
        wait()


def as_stranger(attack: Callable[..., Any], *args: Any) -> Any:
    """Return what ``attack(*args)`` returns, run as another user."""
    with stranger(attack, *args) as result:
        return result()


def network_of_its_own() -> None:
    """Give this process, and what it starts, a loopback interface that nobody else has: an attack on all its ports hits no other test."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare")
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh", b"lo", _IFF_UP))


def why_not(attack: Callable[..., Any], *args: Any) -> str:
    """Return the name of the error that ``attack(*args)`` ends with, or what it came to."""
    try:
        return f"it worked: {attack(*args)!r}"
    except Exception as error:
        return type(error).__name__
