"""Share the open run of Weights & Biases between cells: begun in the notebook or on an engine, it is open in the next cell.

Runs belong to a service process, whose address is in an environment variable. So rank 0 attaches to the notebook's run, and the notebook to
a run that the cell has begun; the other ranks have a disabled run. ``wandb.run`` and its parts are specific to each process.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import wraps
from types import MethodType
from typing import Any, ClassVar

from ..analysis.imports import imported_for
from ..system.patches import patched
from .base import Integration, RunScope, Setting

_PARTS = ("run", "config", "summary")
_KINDS = frozenset({"Run", "NoopRun", "Config", "Summary"})
_DISABLED = "disabled"
_SERVICE = "WANDB_SERVICE"


def begin_service(source: str) -> None:
    """Start the service in the notebook, if `source` may need it: a service that an engine starts would end with the engine."""
    with suppress(Exception):  # the cell raises the same error
        if (wandb := imported_for(source, "wandb")) is not None:
            wandb.setup()


def with_own_service(environment: dict[str, str], source: str) -> dict[str, str]:
    """Start a service of this process, which may outlive the notebook, and return `environment` with its address."""
    os.environ.pop(_SERVICE, None)
    begin_service(source)
    others = {name: value for name, value in environment.items() if name != _SERVICE}
    return {**others, _SERVICE: os.environ[_SERVICE]} if _SERVICE in os.environ else others


def open_run() -> dict[str, Any] | None:
    """Return what another process needs to attach to the open run; ``None`` if there is none."""
    wandb: Any = sys.modules.get("wandb")
    run = getattr(wandb, "run", None)
    if run is None:
        return None
    again = {"project": run.project, "entity": run.entity or None, "name": run.name, "mode": run.settings.mode}
    return {"id": None, "config": dict(run.config)} if run.disabled else {"id": run.id, "config": dict(run.config), "again": again}


def join_run(joined: dict[str, Any] | None) -> None:
    """Make this the open run."""
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
        except Exception:  # the service has ended with the kernel, so resume by id through a new one
            os.environ.pop(_SERVICE, None)
            again, online = joined["again"], joined["again"]["mode"] == "online"
            wandb.init(id=joined["id"], resume="allow" if online else None, **again)
    wandb.run.config.update(joined["config"], allow_val_change=True)


def _keeping_nothing(joined: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a disabled run for ranks that log nothing."""
    return None if joined is None else {**joined, "id": None}


@contextmanager
def followed(run: RunScope) -> Iterator[None]:
    """Follow runs that the cell begins and ends, until the end of the ``with`` block; runs begun on ranks other than 0 are disabled."""
    wandb = imported_for(run.source, "wandb")
    if wandb is None:
        yield
        return
    begin, kind = wandb.init, importlib.import_module("wandb.sdk.wandb_run").Run
    leave, end = kind.__exit__, kind._finish

    @wraps(begin)
    def init(*args: Any, **options: Any) -> Any:
        if run.is_jumping() and wandb.run is not None:
            return wandb.run
        return begin(*args, **{**options, "mode": _DISABLED} if run.rank else options)

    with ExitStack() as patches:
        patches.enter_context(patched(wandb, "init", init))
        patches.enter_context(patched(kind, "__exit__", lambda own, *error: None if run.goes_on() else leave(own, *error)))
        patches.enter_context(patched(kind, "_finish", lambda own, *code, **by: None if run.goes_on() else end(own, *code, **by)))
        yield


def reduced_run(obj: Any) -> Any:
    """Return a reduction of the open run, its config or its summary to those of the reader; ``NotImplemented`` for other objects."""
    if type(obj) is MethodType:  # a method of the run, such as `run.log`: the reader's run may have another class
        return NotImplemented if reduced_run(obj.__self__) is NotImplemented else (getattr, (obj.__self__, obj.__name__))
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
    """Forget the open run without telling the service, as another process continues it or has ended it."""
    run = wandb.run
    if not run.disabled:
        atexit.unregister(run._atexit_cleanup)
        run._wl.remove_active_run(run)
        run._is_finished = True
    importlib.import_module("wandb.sdk.lib.module").unset_globals()


class Wandb(Integration):
    """The open run is a setting; the environment has the address of its service."""

    settings: ClassVar = {"run": Setting(get=open_run, set=join_run, of_other_ranks=_keeping_nothing)}

    def reduce(self, obj: Any) -> Any:
        """Return a reduction of the open run, its parts and its methods."""
        return reduced_run(obj)

    def before_cell(self, source: str) -> None:
        """Start the service, as one that an engine starts would end with the engine."""
        begin_service(source)

    def environment_of_host(self, environment: dict[str, str], settings: Mapping[str, Any], source: str) -> dict[str, str]:
        """Return the environment, with the address of the host's own service if no run of the notebook is open."""
        return environment if settings.get("run") is not None else with_own_service(environment, source)

    def run_scope(self, run: RunScope) -> AbstractContextManager[None]:
        """Follow the runs that the cell begins and ends."""
        return followed(run)


INTEGRATION = Wandb()
