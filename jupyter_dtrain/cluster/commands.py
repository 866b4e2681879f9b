"""The processes of a cluster: what they are called and how they are started."""

from __future__ import annotations

import sys
from collections.abc import Sequence

CONTROLLER = "controller"
TEMPLATE = "template"
CONTROLLER_ARGUMENTS = (
    "--IPController.ip=127.0.0.1",
    "--IPController.location=127.0.0.1",  # or every client would ask DNS for this host's name
    "--IPController.use_threads=True",  # one process and not seven; the relays are C threads either way
    "--IPController.db_class=NoDB",  # or the controller would keep every task and result in memory
    "--HeartMonitor.period=150",  # milliseconds; an engine is registered at its first heartbeat
    "--HeartMonitor.max_heartmonitor_misses=400",  # a minute: deaths are noticed by the guard, and a busy host is no death
)
ENGINE_ARGUMENTS = (
    "--IPEngine.enable_nanny=False",
    "--IPEngine.max_heartbeat_misses=0",  # the guard ends engines whose controller or kernel is gone
    "--InteractiveShellApp.exec_PYTHONSTARTUP=False",
)


def controller_command() -> list[str]:
    """Return the command line of the controller."""
    return [sys.executable, "-m", f"{__package__}.controller_app", *CONTROLLER_ARGUMENTS]


def template_command(modules: Sequence[str]) -> list[str]:
    """Return the command line of the process that engines are forked from, with `modules` imported."""
    return [sys.executable, "-m", f"{__package__}.template", *modules]


def engine_command(engine_id: int) -> list[str]:
    """Return the command line of an engine that asks for this id."""
    return [sys.executable, "-m", f"{__package__}.engine_app", f"--IPEngine.id={engine_id}", *ENGINE_ARGUMENTS]


def engine_name(engine_id: int) -> str:
    """Return what the process of an engine is called."""
    return f"engine-{engine_id}"


def id_of(name: str) -> int:
    """Return the id of the engine whose process is called `name`."""
    return int(name.removeprefix("engine-"))
