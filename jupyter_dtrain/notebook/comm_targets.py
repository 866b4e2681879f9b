"""The kernel's end of comms, by the kernel's own manager of them.

The package `comm` is meant to find it, and does so since ipykernel 6.18. With an older one, as Colab has it, `comm` has a manager of
its own, of which the kernel does not know: what is registered there nobody can open. So the kernel is asked first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import comm
from IPython.core.getipython import get_ipython

if TYPE_CHECKING:
    from comm.base_comm import BaseComm

Targets = Mapping[str, "Callable[[BaseComm, dict[str, Any]], None]"]
"""What is called with a comm that a front end has opened, and with the message that opened it, by the comm's target."""


def _manager() -> Any:
    """Return the running kernel's, or that of `comm` where there is no kernel: nobody opens anything there."""
    kernel = getattr(get_ipython(), "kernel", None)
    return getattr(kernel, "comm_manager", None) or comm.get_comm_manager()


def register(targets: Targets) -> None:
    """Let front ends open comms to `targets`."""
    manager = _manager()
    for name, handler in targets.items():
        manager.register_target(name, handler)


def unregister(targets: Targets) -> None:
    """Do not let them any more; targets that somebody else has registered since stay."""
    manager = _manager()
    for name, handler in targets.items():
        if manager.targets.get(name) == handler:
            manager.unregister_target(name, handler)


def forget(comm_id: str) -> None:
    """Take it that a front end has closed this comm."""
    _manager().comm_close(None, None, {"content": {"comm_id": comm_id}})  # of whom: it uses neither
