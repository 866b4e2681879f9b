"""Start engines on a background thread, and wait for a start."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from datetime import timedelta

from ..cluster.base import Cluster, Progress
from ..cluster.launchers import LOCAL
from ..cluster_options import ClusterOptions
from ..system.interpreter import interrupted_before_the_cell

STARTING = "while the engines were starting"
"""Place in an error message: when the interrupt came."""


class EngineStart:
    """Run a start on its own thread, and queue its progress messages for the thread that waits.

    Parameters
    ----------
    start : callable
        Takes a progress callback. The callback raises `KeyboardInterrupt` after :meth:`give_up`.
    """

    def __init__(self, start: Callable[[Progress], object]) -> None:
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._unwanted = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(start,), name="dtrain-start", daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        """Whether the start has ended, with or without an error."""
        return not self._thread.is_alive()

    def wait(self, on_progress: Progress | None) -> None:
        """Wait for the start, pass its messages to `on_progress`, and raise its error. A keyboard interrupt cancels the start."""
        try:
            while not self.over or not self._said.empty():
                try:
                    sentence = self._said.get(timeout=0.05)
                except queue.Empty:
                    continue
                if on_progress is not None:
                    on_progress(sentence)
        except BaseException:
            self.give_up()
            raise
        if self._error is not None:
            raise self._error

    def give_up(self) -> None:
        """Cancel the start and wait for its thread. A cluster that is already up is kept."""
        self._unwanted = True
        self._thread.join()

    def _run(self, start: Callable[[Progress], object]) -> None:
        try:
            start(self._say)
        except BaseException as error:
            self._error = error

    def _say(self, sentence: str) -> None:
        if self._unwanted:
            raise KeyboardInterrupt
        self._said.put(sentence)


def start_warm(start: Callable[[Progress], Cluster], limit: timedelta, on_progress: Progress) -> Cluster:
    """Return the cluster of `start` once its engines have imported torch, within `limit`; report progress."""
    told: list[str] = []

    def tell(sentence: str) -> None:
        told.append(sentence)
        on_progress(sentence)

    cluster = start(tell)
    if not cluster.warm:  # an interrupt during the import would be lost, so a cell queued behind it could not be stopped
        tell("the engines import torch")
        with interrupted_before_the_cell(STARTING):
            cluster.wait_warm(limit)
    if told:
        count = len(cluster.engine_ids)
        on_progress(f"{count} engine{'' if count == 1 else 's'} ready")
    return cluster


def satisfies(cluster: Cluster, options: ClusterOptions, started_with: ClusterOptions) -> bool:
    """Return whether a cluster has what `options` ask for."""
    enough = options.num_engines is None or options.num_engines <= len(cluster.engine_ids)
    kind = cluster.device_plans[0].device.partition(":")[0]
    asked = {**options.where, "launcher": None}
    is_there = asked == ClusterOptions().where or (asked == {**started_with.where, "launcher": None} and not cluster.lost_hosts)
    return enough and options.device in ("auto", kind) and options.launcher in (None, started_with.launcher or LOCAL) and is_there
