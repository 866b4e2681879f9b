"""The run of Weights & Biases that is open: begun in a cell of the notebook or on an engine, it is the same one for the next cell.

What logs to it is a service that processes can connect to; an environment variable says how. So rank 0 joins the notebook's run, and the
notebook a run that the cell has begun; the other ranks have one that keeps nothing. ``wandb.run`` and what belongs to it is each
process's own.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import wraps
from typing import Any
from unittest import mock

from ..analysis.imports import imported_for

NAME = "wandb.run"  # among the settings that go along
_PARTS = ("run", "config", "summary")
_KINDS = frozenset({"Run", "NoopRun", "Config", "Summary"})
_DISABLED = "disabled"
_SERVICE = "WANDB_SERVICE"


def begin_service(source: str) -> None:
    """In the notebook: have the service run before an engine would start one that ends with it, if `source` may need it."""
    with suppress(Exception):  # the cell meets the same, and says so
        if (wandb := imported_for(source, "wandb")) is not None:
            wandb.setup()


def with_own_service(environment: dict[str, str], source: str) -> dict[str, str]:
    """In a process that may outlive the notebook: have a service of its own, and return `environment` with the way to it."""
    os.environ.pop(_SERVICE, None)
    begin_service(source)
    others = {name: value for name, value in environment.items() if name != _SERVICE}
    return {**others, _SERVICE: os.environ[_SERVICE]} if _SERVICE in os.environ else others


def open_run() -> dict[str, Any] | None:
    """Return what another process joins the open run by; ``None`` where there is none."""
    wandb: Any = sys.modules.get("wandb")
    run = getattr(wandb, "run", None)
    if run is None:
        return None
    again = {"project": run.project, "entity": run.entity or None, "name": run.name, "mode": run.settings.mode}
    return {"id": None, "config": dict(run.config)} if run.disabled else {"id": run.id, "config": dict(run.config), "again": again}


def join_run(joined: dict[str, Any] | None) -> None:
    """Make this run the open one."""
    wandb: Any = importlib.import_module("wandb") if joined is not None else sys.modules.get("wandb")
    present = open_run()
    if present is not None and (joined is None or joined["id"] != present["id"]):
        _leave(wandb)
        present = None
    if joined is None:
        return
    if present is None and joined["id"] is None:
        wandb.init(mode=_DISABLED)
    elif present is None:
        try:
            wandb._attach(joined["id"])  # as Lightning does
        except Exception:  # its service has ended with the kernel: here is another, and a server knows the run by its id
            os.environ.pop(_SERVICE, None)
            again, online = joined["again"], joined["again"]["mode"] == "online"
            wandb.init(id=joined["id"], resume="allow" if online else None, **again)
    wandb.run.config.update(joined["config"], allow_val_change=True)


def without_run(settings: dict[str, Any]) -> dict[str, Any]:
    """Return `settings` for a rank that logs nothing."""
    joined = settings.get(NAME)
    return settings if joined is None else {**settings, NAME: {**joined, "id": None}}


@contextmanager
def followed(source: str, *, keeps_nothing: bool, is_jumping: Callable[[], bool], goes_on: Callable[[], bool]) -> Iterator[None]:
    """Follow the runs that the cell begins and ends, until the end of the ``with`` block.

    Parameters
    ----------
    source : str
        The cell, which may be the first to import the library.
    keeps_nothing : bool
        Runs that begin here are to keep nothing.
    is_jumping : callable
        Whether the cell is on its way to where it goes on: then the run of a ``with`` has begun.
    goes_on : callable
        Whether the cell has been left here to go on from a snapshot: then its run does not end.
    """
    wandb = imported_for(source, "wandb")
    if wandb is None:
        yield
        return
    begin, kind = wandb.init, importlib.import_module("wandb.sdk.wandb_run").Run
    leave, end = kind.__exit__, kind._finish

    @wraps(begin)
    def init(*args: Any, **options: Any) -> Any:
        if is_jumping() and wandb.run is not None:
            return wandb.run
        return begin(*args, **{**options, "mode": _DISABLED} if keeps_nothing else options)

    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(wandb, "init", init))
        patches.enter_context(mock.patch.object(kind, "__exit__", lambda run, *error: None if goes_on() else leave(run, *error)))
        patches.enter_context(mock.patch.object(kind, "_finish", lambda run, *code, **by: None if goes_on() else end(run, *code, **by)))
        yield


def reduced_run(obj: Any) -> Any:
    """Return how `obj` reduces if it is the open run, or the configuration or the summary of it: as that of who reads it."""
    if type(obj).__name__ not in _KINDS:
        return NotImplemented
    run = getattr(sys.modules.get("wandb"), "run", None)
    if run is None:
        return NotImplemented
    return next(((_part, (name,)) for name in _PARTS if obj is _part(name)), NotImplemented)


def _part(name: str) -> Any:
    run = importlib.import_module("wandb").run
    return run if name == "run" or run is None else getattr(run, name)


def _leave(wandb: Any) -> None:
    """Have no open run, without a word to the service: another process goes on with it, or has ended it."""
    run = wandb.run
    if not run.disabled:
        atexit.unregister(run._atexit_cleanup)
        run._wl.remove_active_run(run)
        run._is_finished = True
    importlib.import_module("wandb.sdk.lib.module").unset_globals()
