"""The controller's process: ipyparallel's own, whose helper processes die with it."""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import os
import signal
import sys

import psutil

from .guard import PR_SET_PDEATHSIG, prctl


def main() -> None:
    """Run the controller. Should even the guard be killed, no helper of the controller stays behind."""
    from ipyparallel.controller.app import IPController

    if sys.platform == "linux":
        # Since Python 3.14 a process of its own would fork them, which nobody ends.
        multiprocessing.set_start_method("fork")
    set_option = prctl()
    num_helpers = 0

    def forked() -> None:
        nonlocal num_helpers
        num_helpers += 1
        signal.signal(signal.SIGCHLD, look_after_helpers)

    def look_after_helpers(_number: int, _frame: object) -> None:
        # Without one, which has ended or is stopped, it would let no new engine in: there is to be another controller.
        if sum(map(_is_at_work, multiprocessing.active_children())) < num_helpers:
            os._exit(1)

    os.register_at_fork(after_in_child=lambda: set_option(PR_SET_PDEATHSIG, signal.SIGKILL), after_in_parent=forked)
    IPController.launch_instance(sys.argv[1:])


def _is_at_work(helper: multiprocessing.process.BaseProcess) -> bool:
    try:
        return psutil.Process(helper.pid).status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


if __name__ == "__main__":
    main()
