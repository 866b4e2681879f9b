"""Comm targets, registered with the kernel's own comm manager.

The package `comm` finds that manager since ipykernel 6.18. With older versions (Colab), `comm` has a manager of its own that the kernel
does not know, so nobody could open targets registered there. So the kernel is asked first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import comm
from IPython.core.getipython import get_ipython

if TYPE_CHECKING:
    from comm.base_comm import BaseComm

Targets = Mapping[str, "Callable[[BaseComm, dict[str, Any]], None]"]
"""Target name → handler, which takes the opened comm and the message that opened it."""


def _manager() -> Any:
    """Return the kernel's comm manager, or that of `comm` if there is no kernel."""
    kernel = getattr(get_ipython(), "kernel", None)
    return getattr(kernel, "comm_manager", None) or comm.get_comm_manager()


def register(targets: Targets) -> None:
    """Register `targets`, so that front ends can open comms to them."""
    manager = _manager()
    for name, handler in targets.items():
        manager.register_target(name, handler)


def unregister(targets: Targets) -> None:
    """Unregister `targets`, except those that were registered again with other handlers."""
    manager = _manager()
    for name, handler in targets.items():
        if manager.targets.get(name) == handler:
            manager.unregister_target(name, handler)


def forget(comm_id: str) -> None:
    """Act as if a front end had closed this comm."""
    _manager().comm_close(None, None, {"content": {"comm_id": comm_id}})  # the first two arguments are unused
