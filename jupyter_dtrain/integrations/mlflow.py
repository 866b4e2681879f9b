"""Share MLflow's active runs between cells: begun in the notebook or on an engine, they are active in the next cell.

Each process has its own active runs, while data is logged to a store that all processes reach. While a cell runs, only rank 0 calls the
store, and all ranks get its answers. So a run that the cell begins has the same id on every rank, and its data is logged once.
"""

from __future__ import annotations

import atexit
import importlib
import pickle
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial, wraps
from typing import Any, ClassVar

from ..analysis.imports import imported_for
from ..system.patches import patched
from .base import Integration, RunScope, Setting

FLUENT = "mlflow.tracking.fluent"
_OF_CLIENT = ("log_artifact", "log_artifacts", "_log_artifact_async", "set_terminated")
_UNANSWERED = frozenset({"log_batch", "log_metric", "log_param", "set_tag", "_log_artifact_async", "set_terminated"})
"""Calls that are frequent, or that a rank makes when it leaves without the others, and whose result is unused."""
_LINE = "_dtrain_line"  # attribute of a run with the user's line at which it was begun
_LATER = "_async"  # suffix of calls that return an object to wait for


def active_runs() -> dict[str, Any] | None:
    """Return the active runs, the outermost first, and the active experiment; ``None`` without any."""
    fluent: Any = sys.modules.get(FLUENT)
    if fluent is None:
        return None
    found = {"runs": [pickle.dumps(run) for run in stack_of(fluent)], "experiment": fluent._active_experiment_id}
    return found if any(found.values()) else None


def set_active_runs(active: dict[str, Any] | None) -> None:
    """Set this process's active runs without calling the store: nothing begins or ends."""
    runs, experiment = (active["runs"], active["experiment"]) if active is not None else ([], None)
    fluent: Any = importlib.import_module(FLUENT) if runs else sys.modules.get(FLUENT)
    if fluent is not None:
        stack_of(fluent)[:] = [pickle.loads(run) for run in runs]
        fluent._active_experiment_id = experiment


def stack_of(fluent: Any) -> list[Any]:
    """Return the list of this thread's active runs, the outermost first, which may be modified."""
    stack = fluent._active_run_stack
    runs: list[Any] = stack if isinstance(stack, list) else stack.get()  # a list in old versions, thread-local in new ones
    return runs


class TrackingStore:
    """Let only rank 0 call the store on the cell's thread, and share its answers."""

    def __init__(self, run: RunScope) -> None:
        self._run = run
        self._thread = threading.get_ident()
        self._asked: Counter[str] = Counter()
        self._is_asking = False
        self._patches = ExitStack()
        self._stores: list[Any] = []
        self._opened: list[Any] = []

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Patch the store's methods until the end of the ``with`` block."""
        if imported_for(self._run.source, "mlflow") is None or FLUENT not in sys.modules:
            yield
            return
        with self._patches:
            with suppress(ImportError, AttributeError):  # in an unknown version each rank calls the store
                self._follow(sys.modules["mlflow"], sys.modules[FLUENT])
            yield

    def _follow(self, mlflow: Any, fluent: Any) -> None:
        service: Any = importlib.import_module("mlflow.tracking._tracking_service.utils")
        client: Any = importlib.import_module("mlflow.tracking._tracking_service.client").TrackingServiceClient
        stores: Any = importlib.import_module("mlflow.store.tracking.abstract_store")
        names = [name for name, value in vars(stores.AbstractStore).items() if callable(value) and not name.startswith("_")]
        registry = service._tracking_store_registry
        self._patches.enter_context(patched(registry, "get_store", self._getting(registry.get_store, names)))
        self._patch(client, _OF_CLIENT)
        for module in (mlflow, fluent):
            self._patches.enter_context(patched(module, "start_run", self._starting(mlflow, fluent, module.start_run)))
        atexit.unregister(fluent._safe_end_run)  # the run continues in the notebook, so an engine must not end it at its exit

    def _getting(self, get_store: Callable[..., Any], names: Iterable[str]) -> Callable[..., Any]:
        @wraps(get_store)
        def get(*args: Any, **options: Any) -> Any:
            if (args, options) not in self._opened:
                self._opened.append((args, options))
                self._asking("get_store", lambda: get_store(*args, **options) and None)()  # rank 0 first: this may create tables
            store = get_store(*args, **options)
            if not any(store is known for known in self._stores):
                self._stores.append(store)
                self._patch(store, names, listed="mlflow.store.tracking.abstract_store.AbstractStore")
            return store

        return get

    def _starting(self, mlflow: Any, fluent: Any, start_run: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(start_run)
        def start(*args: Any, **options: Any) -> Any:
            line = self._run.users_line()
            if self._run.is_jumping():  # jumping through a ``with`` whose run is active
                for run in reversed(stack_of(fluent)):
                    if getattr(run, _LINE, None) == line:
                        mlflow.MlflowClient().update_run(run.info.run_id, status="RUNNING")  # leaving the cell has ended it
                        return run
            run = start_run(*args, **options)
            setattr(run, _LINE, line)
            return run

        return start

    def _patch(self, owner: Any, names: Iterable[str], *, listed: str | None = None) -> None:
        for name in filter(partial(hasattr, owner), names):
            self._patches.enter_context(patched(owner, name, self._asking(name, getattr(owner, name)), listed=listed))

    def _asking(self, name: str, ask: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(ask)
        def by_first(*args: Any, **options: Any) -> Any:
            if threading.get_ident() != self._thread:
                return ask(*args, **options) if self._run.rank == 0 else None
            if self._is_asking:  # the store calls itself
                return ask(*args, **options)
            return self._answer(name, partial(ask, *args, **options))

        return by_first

    def _answer(self, name: str, ask: Callable[[], Any]) -> Any:
        if self._run.rank and name in _UNANSWERED:
            return None
        if self._run.rank and name.endswith(_LATER):
            return importlib.import_module("mlflow.utils.async_logging.run_operations").RunOperations([])
        if name in _UNANSWERED or name.endswith(_LATER):
            return self._ask(ask)
        self._asked[name] += 1
        topic = f"mlflow/{name}/{self._asked[name]}"
        if self._run.rank:
            answer, error = self._run.talk.hear_object(topic)
        else:
            answer = error = None
            try:
                answer = self._ask(ask)
            except Exception as found:
                error = found
            self._run.talk.tell_object(topic, (answer, error))
        if error is not None:
            raise error
        return answer

    def _ask(self, ask: Callable[[], Any]) -> Any:
        self._is_asking = True
        try:
            return ask()
        finally:
            self._is_asking = False


class MLflow(Integration):
    """The active runs are a setting, and while a cell runs only rank 0 calls the store."""

    settings: ClassVar = {"active_run": Setting(get=active_runs, set=set_active_runs)}

    def run_scope(self, run: RunScope) -> AbstractContextManager[None]:
        """Patch the store for the cell."""
        return TrackingStore(run).followed()


INTEGRATION = MLflow()
