"""The controller's process: ipyparallel's controller on Unix sockets, or with CURVE for several hosts.

Over plain TCP, any user of the machine could read what cells print, as ipyparallel signs messages but does not encrypt them.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import os
import signal
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import psutil

from ..system.patches import put
from .process_tree import PR_SET_PDEATHSIG, prctl


def main() -> None:
    """Run the controller. Its helper processes die with it, even if the guard is killed."""
    if sys.platform == "linux":
        # Since Python 3.14 the default is a fork server, a separate process that nobody would end.
        multiprocessing.set_start_method("fork")
    set_option = prctl()
    num_helpers = 0

    def forked() -> None:
        nonlocal num_helpers
        num_helpers += 1
        signal.signal(signal.SIGCHLD, look_after_helpers)

    def look_after_helpers(_number: int, _frame: object) -> None:
        # Without a helper (ended or stopped) no new engine can register, so the controller exits to be replaced.
        if sum(map(_is_at_work, multiprocessing.active_children())) < num_helpers:
            os._exit(1)

    os.register_at_fork(after_in_child=lambda: set_option(PR_SET_PDEATHSIG, signal.SIGKILL), after_in_parent=forked)
    _controller_class().launch_instance(sys.argv[1:])


def _controller_class() -> Any:
    from ipyparallel.controller.app import IPController
    from ipyparallel.controller.heartmonitor import HeartMonitor

    put(HeartMonitor, "handle_pong", registering(HeartMonitor.handle_pong))

    class Controller(IPController):  # type: ignore[misc]
        """A controller that numbers Unix sockets instead of ports, unless it serves several hosts."""

        _num_sockets = 0

        def next_port(self, pool: str = "common") -> int:
            if self.transport != "ipc":
                return int(super().next_port(pool))
            self._num_sockets += 1
            return self._num_sockets

        def construct_url(self, kind: str, channel: str, index: Any = None) -> str:
            if self.transport != "ipc":
                return str(super().construct_url(kind, channel, index))
            # ipyparallel 9.2 joins the two parts of such a path with a hyphen here, but with a colon in engines and clients.
            info = {"engine": self.engine_info, "client": self.client_info, "internal": self.internal_info}[kind]
            number = info[channel] if index is None else info[channel][index]
            return f"{info['interface']}:{number}"

    return Controller


def registering(original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Return a `handle_pong` that reports a new heart at once instead of with the next beat."""

    @wraps(original)
    def handle_pong(monitor: Any, message: Any) -> None:
        original(monitor, message)
        if new := monitor.responses - monitor.hearts:
            monitor.handle_new_hearts(new)

    return handle_pong


def _is_at_work(helper: multiprocessing.process.BaseProcess) -> bool:
    try:
        return psutil.Process(helper.pid).status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


if __name__ == "__main__":
    main()
