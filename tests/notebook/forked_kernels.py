"""Kernels that are forked: what notebooks import first takes seconds of a core, and is imported once for all tests of a process.

Run as a module this is the process that they are forked from. It takes lines of JSON: ``{"argv", "env", "cwd"}``, to which the new kernel
answers with its pid, and ``{"ended": pid}``, to which it answers itself with what that kernel ended with. It has no threads and no event
loop, which a fork could not bear.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FORKED = hasattr(os, "pidfd_open")  # Linux; elsewhere kernels are launched
SAID = ".kernel.log"  # in a kernel's folder: what its process wrote, and Python's stack if it fell


class ForkedKernel:
    """Looks like the ``Popen`` of a kernel, which is no child of this process: the one that forked it is asked what it ended with."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int, template: KernelTemplate) -> None:
        self.pid, self._template, self._handle = pid, template, os.pidfd_open(pid)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self.wait(0)

    def wait(self, timeout: float | None = None) -> int | None:
        if self.returncode is None and select.select([self._handle], [], [], timeout)[0]:
            os.close(self._handle)
            self.returncode = self._template.ask({"ended": self.pid})
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class KernelTemplate:
    """The process that kernels are forked from, started when the first is asked for."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self, cmd: Sequence[str], *, env: Mapping[str, str], cwd: str, **_: Any) -> ForkedKernel:
        """Fork a kernel. Takes the place of ``jupyter_client``'s `launch_kernel`."""
        if self._process is None:
            code = [sys.executable, "-Xfrozen_modules=off", "-m", __name__]  # as kernels are started: the debugger says otherwise
            self._process = subprocess.Popen(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(env))
        pid = self.ask({"argv": list(cmd[cmd.index("ipykernel_launcher") :]), "env": dict(env), "cwd": cwd})
        return ForkedKernel(pid, self)

    def ask(self, request: Mapping[str, Any]) -> int:
        """Send a line, and return the number that is answered."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


def main() -> None:
    import ipykernel.debugger  # noqa: F401  # each kernel does
    import torch._dynamo  # noqa: F401  # the first optimizer imports it
    from ipykernel.kernelapp import launch_new_instance

    gc.freeze()
    ended: dict[int, int] = {}

    def reap(*_: object) -> None:  # at once: a kernel that has ended is not there any more
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                ended[found[0]] = os.waitstatus_to_exitcode(found[1])

    signal.signal(signal.SIGCHLD, reap)
    for line in sys.stdin:
        request = json.loads(line)
        if "ended" in request:
            while request["ended"] not in ended:  # the signal may be on its way
                reap()
            print(ended[request["ended"]], flush=True)
        elif not os.fork():
            _become(request)
            launch_new_instance()
            return


def _become(request: Mapping[str, Any]) -> None:
    """Be the process that was asked for, as if it had been started. Where it falls it leaves Python's stack in its folder."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    print(os.getpid(), flush=True)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    said = os.open(Path(request["cwd"], SAID), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(said, 1)
    os.dup2(said, 2)
    faulthandler.enable(said)  # a kernel reads its standard error itself
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = [*request["argv"], f"--IPKernelApp.parent_handle={os.getppid()}"]  # at whose end it ends
    del sys.path[0]  # where this module is


if __name__ == "__main__":
    main()
