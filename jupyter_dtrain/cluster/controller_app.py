"""The controller's process: ipyparallel's own, whose helper processes die with it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys

from .guard import PR_SET_PDEATHSIG, prctl


def main() -> None:
    """Run the controller. Should even the guard be killed, no helper of the controller stays behind."""
    from ipyparallel.controller.app import IPController

    if sys.platform == "linux":
        # Since Python 3.14 a process of its own would fork them, which nobody ends.
        multiprocessing.set_start_method("fork")
    set_option = prctl()
    os.register_at_fork(
        after_in_child=lambda: set_option(PR_SET_PDEATHSIG, signal.SIGKILL),
        # Without a helper, which has ended or is stopped, it would let no new engine in: there is to be another controller.
        after_in_parent=lambda: signal.signal(signal.SIGCHLD, lambda _number, _frame: os._exit(1)),
    )
    IPController.launch_instance(sys.argv[1:])


if __name__ == "__main__":
    main()
