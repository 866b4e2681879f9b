"""How engines start: beside the thread that runs the cells, or while it waits."""

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
"""What an interrupt says that comes then."""


class EngineStart:
    """A start in the background: on its own thread, what it says for whoever waits.

    Parameters
    ----------
    start : callable
        Gets what to tell its progress, which raises where nobody wants the start any more.
    """

    def __init__(self, start: Callable[[Progress], object]) -> None:
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._unwanted = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(start,), name="dtrain-start", daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        """Whether it has ended, well or not."""
        return not self._thread.is_alive()

    def wait(self, on_progress: Progress | None) -> None:
        """Pass on what is said until it is over, and raise its error. A keyboard interrupt ends it."""
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
        """Start nothing any more, and wait until nothing is left of what was half-started. What has come up stays."""
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
    """Return the cluster that `start` returns once its engines have imported torch, in at most `limit`; tell how far that is."""
    told: list[str] = []

    def tell(sentence: str) -> None:
        told.append(sentence)
        on_progress(sentence)

    cluster = start(tell)
    if not cluster.warm:  # an interrupt of that import would be lost, and a cell that waits behind it could not be stopped
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
