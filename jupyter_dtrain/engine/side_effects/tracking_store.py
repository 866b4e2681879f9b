"""MLflow's tracking store in a cell: rank 0 alone asks it, and all ranks have its answer.

So a run that the cell begins is one run, with the same id on every rank, and what is logged is there once. The other ranks have the store
only to look like it.
"""

from __future__ import annotations

import atexit
import importlib
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial, wraps
from typing import Any
from unittest import mock

from ...analysis.imports import imported_for
from ...integrations.mlflow import FLUENT, stack_of
from ..comm.store import StoreChannel
from ..user_frames import users_line

_OF_CLIENT = ("log_artifact", "log_artifacts", "_log_artifact_async", "set_terminated")
_UNANSWERED = frozenset({"log_batch", "log_metric", "log_param", "set_tag", "_log_artifact_async", "set_terminated"})
"""What is asked often, or by a rank that leaves alone, and whose answer is nothing."""
_LINE = "_dtrain_line"  # of the user's code, where a run was begun
_LATER = "_async"  # their answer is what to wait for


class TrackingStore:
    """Follows what the cell's thread asks.

    Parameters
    ----------
    talk : StoreChannel
        By which rank 0 tells the others.
    rank : int
    is_jumping : callable
        Whether the run is on its way to where it goes on.
    """

    def __init__(self, talk: StoreChannel, *, rank: int, is_jumping: Callable[[], bool]) -> None:
        self._talk, self._rank, self._is_jumping = talk, rank, is_jumping
        self._thread = threading.get_ident()
        self._asked: Counter[str] = Counter()
        self._is_asking = False
        self._patches = ExitStack()
        self._stores: list[Any] = []
        self._opened: list[Any] = []

    @contextmanager
    def followed(self, source: str) -> Iterator[None]:
        """Follow it until the end of the ``with`` block. `source` is the cell's, which may be the first to import MLflow."""
        if imported_for(source, "mlflow") is None or FLUENT not in sys.modules:
            yield
            return
        with self._patches:
            with suppress(ImportError, AttributeError):  # a version that has it elsewhere: each rank asks
                self._follow(sys.modules["mlflow"], sys.modules[FLUENT])
            yield

    def _follow(self, mlflow: Any, fluent: Any) -> None:
        service: Any = importlib.import_module("mlflow.tracking._tracking_service.utils")
        client: Any = importlib.import_module("mlflow.tracking._tracking_service.client").TrackingServiceClient
        stores: Any = importlib.import_module("mlflow.store.tracking.abstract_store")
        names = [name for name, value in vars(stores.AbstractStore).items() if callable(value) and not name.startswith("_")]
        registry = service._tracking_store_registry
        self._patches.enter_context(mock.patch.object(registry, "get_store", self._getting(registry.get_store, names)))
        self._patch(client, _OF_CLIENT)
        for module in (mlflow, fluent):
            self._patches.enter_context(mock.patch.object(module, "start_run", self._starting(mlflow, fluent, module.start_run)))
        atexit.unregister(fluent._safe_end_run)  # the notebook has the run too: an engine that ends does not end it

    def _getting(self, get_store: Callable[..., Any], names: Iterable[str]) -> Callable[..., Any]:
        @wraps(get_store)
        def get(*args: Any, **options: Any) -> Any:
            if (args, options) not in self._opened:
                self._opened.append((args, options))
                self._asking("get_store", lambda: get_store(*args, **options) and None)()  # which may make its tables first
            store = get_store(*args, **options)
            if not any(store is known for known in self._stores):
                self._stores.append(store)
                self._patch(store, names)
            return store

        return get

    def _starting(self, mlflow: Any, fluent: Any, start_run: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(start_run)
        def start(*args: Any, **options: Any) -> Any:
            line = users_line()
            if self._is_jumping():  # through a ``with`` whose run is active
                for run in reversed(stack_of(fluent)):
                    if getattr(run, _LINE, None) == line:
                        mlflow.MlflowClient().update_run(run.info.run_id, status="RUNNING")  # who has left the cell has ended it
                        return run
            run = start_run(*args, **options)
            setattr(run, _LINE, line)
            return run

        return start

    def _patch(self, owner: Any, names: Iterable[str]) -> None:
        for name in filter(partial(hasattr, owner), names):
            self._patches.enter_context(mock.patch.object(owner, name, self._asking(name, getattr(owner, name))))

    def _asking(self, name: str, ask: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(ask)
        def by_first(*args: Any, **options: Any) -> Any:
            if threading.get_ident() != self._thread:
                return ask(*args, **options) if self._rank == 0 else None
            if self._is_asking:  # the store asks itself
                return ask(*args, **options)
            return self._answer(name, partial(ask, *args, **options))

        return by_first

    def _answer(self, name: str, ask: Callable[[], Any]) -> Any:
        if self._rank and name in _UNANSWERED:
            return None
        if self._rank and name.endswith(_LATER):
            return importlib.import_module("mlflow.utils.async_logging.run_operations").RunOperations([])
        if name in _UNANSWERED or name.endswith(_LATER):
            return self._ask(ask)
        self._asked[name] += 1
        topic = f"mlflow/{name}/{self._asked[name]}"
        if self._rank:
            answer, error = self._talk.hear_object(topic)
        else:
            answer = error = None
            try:
                answer = self._ask(ask)
            except Exception as found:
                error = found
            self._talk.tell_object(topic, (answer, error))
        if error is not None:
            raise error
        return answer

    def _ask(self, ask: Callable[[], Any]) -> Any:
        self._is_asking = True
        try:
            return ask()
        finally:
            self._is_asking = False
