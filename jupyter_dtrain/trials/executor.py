"""Run trials one after the other on the engines of a lane, in parallel with other lanes."""

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
    """A separate cluster, so that failures in one trial do not affect the others.

    Parameters
    ----------
    options : ClusterOptions
        Its engines, and its part of the machine.
    store : RunStore
    on_news : callable
        Called, on any thread, when its recorder or its engines have news.
    others : callable
        Returns the blob folders of the other lanes, whose buffers need not be stored again.

    Attributes
    ----------
    recorder : RunRecorder, optional
        Recorder of its last run.
    on_begin : callable
        Called with the lane and the recorder of each run that begins.
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
        """Number of engines of the lane."""
        return self.options.num_engines or sum(host.num_engines or 0 for host in self.options.hosts)

    @property
    def has_lost_hosts(self) -> bool:
        """Whether its last run has lost all of its hosts."""
        hosts = {host.name for host in self.options.hosts}
        return bool(hosts) and hosts <= self.engines.lost_hosts

    @property
    def folder(self) -> Path | None:
        """Folder of its buffers, ``None`` without engines."""
        cluster = self.engines.cluster
        return cluster.blob_dir if cluster is not None else None

    @property
    def failed(self) -> FailedRun | None:
        """The last run if its cell has failed; the engines keep its frames."""
        return self._runner.failed

    def forget(self) -> None:
        """Forget the failed run, as another cell begins."""
        self._runner.failed = None

    def run(self, work: Callable[[BlobStore], CellJob], output: Output, watch: TrialWatch | None = None) -> RunResult:
        """Run a cell on the lane's engines, see :meth:`Runner.run`; `watch` tells whether the trial is pruned."""
        self._watch = watch
        return self._runner.run(self.options, work, output=output)

    def stop(self) -> None:
        """Ask the current run to stop. Thread-safe."""
        self._runner.stop()

    def _begin(self, recorder: RunRecorder) -> None:
        self.recorder = recorder
        if self._watch is not None:
            recorder.on_logged = self._watch.logged
        self.on_begin(self, recorder)

    def _pruned_at(self) -> int | None:
        return None if self._watch is None else self._watch.pruned_at()
