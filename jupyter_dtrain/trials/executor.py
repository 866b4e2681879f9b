"""Engines that take one trial after the other, beside other lanes that do the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ..cluster_options import ClusterOptions
from ..elastic.engine_pool import EnginePool
from ..elastic.failed_run import FailedRun
from ..elastic.job import CellJob
from ..elastic.main_thread_output import Output
from ..elastic.run_result import RunResult
from ..elastic.runner import Runner
from ..runs.recorder import RunRecorder
from ..runs.store import RunStore
from ..transport.base import BlobStore
from .pruning import TrialWatch


class Lane:
    """A cluster of its own, so that what dies in one trial is no matter of another.

    Parameters
    ----------
    options : ClusterOptions
        Its engines, and which part of the machine they have.
    store : RunStore
    on_news : callable
        Called, on any thread, when its recorder has something new, or its engines have.
    others : callable
        Returns the folders of buffers of the other lanes: what lies there is not stored again.

    Attributes
    ----------
    recorder : RunRecorder, optional
        Of its last run.
    on_begin : callable
        Told of itself and of the recorder of each run.
    """

    def __init__(
        self, options: ClusterOptions, store: RunStore, *, on_news: Callable[[], None], others: Callable[[], Sequence[Path]] = tuple
    ) -> None:
        self.options = options
        self.engines = EnginePool()
        self.engines.on_update = lambda _: on_news()
        self.recorder: RunRecorder | None = None
        self.on_begin: Callable[[Lane, RunRecorder], None] = lambda _lane, _recorder: None
        self._watch: TrialWatch | None = None
        self._runner = Runner(self.engines, store, on_begin=self._begin, on_news=on_news, others=others, pruned_at=self._pruned_at)

    @property
    def num_engines(self) -> int:
        """How many it has."""
        return self.options.num_engines or sum(host.num_engines or 0 for host in self.options.hosts)

    @property
    def has_lost_hosts(self) -> bool:
        """Whether its last run has lost all hosts that it was on."""
        hosts = {host.name for host in self.options.hosts}
        return bool(hosts) and hosts <= self.engines.lost_hosts

    @property
    def folder(self) -> Path | None:
        """Where its buffers lie, if it has engines."""
        cluster = self.engines.cluster
        return cluster.blob_dir if cluster is not None else None

    @property
    def failed(self) -> FailedRun | None:
        """The last run, whose frames its engines keep, if its cell has failed."""
        return self._runner.failed

    def forget(self) -> None:
        """Look at no failed run any more: another cell begins."""
        self._runner.failed = None

    def run(self, work: Callable[[BlobStore], CellJob], output: Output, watch: TrialWatch | None = None) -> RunResult:
        """Run a cell on its engines, see :meth:`Runner.run`; `watch` follows how well it does."""
        self._watch = watch
        return self._runner.run(self.options, work, output=output)

    def stop(self) -> None:
        """Ask the run to stop, if there is one. Any thread may call this."""
        self._runner.stop()

    def _begin(self, recorder: RunRecorder) -> None:
        self.recorder = recorder
        if self._watch is not None:
            recorder.on_logged = self._watch.logged
        self.on_begin(self, recorder)

    def _pruned_at(self) -> int | None:
        return None if self._watch is None else self._watch.pruned_at()
