"""Keep the lanes of a kernel, and run trials on them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ..cluster.launchers import find_launcher
from ..cluster_options import ClusterOptions
from ..elastic.failed_run import FailedRun
from ..elastic.main_thread_output import Output
from ..errors import UsageError
from ..options import RunOptions
from ..protocol import ClusterUpdate
from ..runs.store import RunStore
from .executor import Lane
from .grid import Trial
from .pruning import Pruning
from .scheduler import Prepare, TrialScheduler
from .side_by_side import SideBySide


class LanePool:
    """Run the trials of one cell at a time. Lanes are kept for the next cell whose trials fit them.

    Parameters
    ----------
    store : RunStore
    on_begin : callable
        Called with the view of each cell's trials.
    on_cluster : callable
        Called, on any thread, with the state of all lanes' engines.
    on_news : callable
        Called, on any thread, when a trial has news.
    """

    def __init__(
        self,
        store: RunStore,
        *,
        on_begin: Callable[[SideBySide], None],
        on_cluster: Callable[[ClusterUpdate], None],
        on_news: Callable[[], None],
    ) -> None:
        self._store, self._on_begin, self._on_cluster, self._on_news = store, on_begin, on_cluster, on_news
        self._lanes: list[Lane] = []
        self._telling = threading.RLock()
        self._told: ClusterUpdate | None = None
        self._trials: TrialScheduler | None = None
        self._shown: SideBySide | None = None

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes)

    def run(
        self,
        trials: Sequence[Trial],
        wanted: list[ClusterOptions],
        prepare: Prepare,
        *,
        options: RunOptions,
        output: Output,
        on_tick: Callable[[TrialScheduler], None],
        pruning: Pruning | None = None,
    ) -> TrialScheduler:
        """Run a cell's trials on lanes with the engines `wanted`, and return their scheduler: see :meth:`TrialScheduler.run`."""
        lanes = self._get(wanted)
        for lane in lanes:
            lane.forget()
        self._trials = running = TrialScheduler(trials, lanes, metric=options.best, output=output, pruning=pruning)
        self._shown = shown = SideBySide(lanes, len(trials))
        self._on_begin(shown)
        try:
            running.run(prepare, on_tick=lambda: on_tick(running))
        finally:
            self._trials = None
            shown.finish()
        if running.best is not None and running.best.run is not None:
            shown.show(running.best.run)
        self._on_news()
        return running

    def stop_trials(self) -> str | None:
        """Ask all trials to stop, and return a message; ``None`` if no trials are running. Thread-safe."""
        if self._trials is None or self._shown is None:
            return None
        self._trials.stop()
        self._shown.set_stopping()
        return "Stopping all trials, each after its current step."

    def stop_trial(self, run_id: str | None) -> str:
        """Ask one trial to stop, and return a message; raise a `UsageError` if it is not running. Thread-safe."""
        for lane in self._lanes if self._trials is not None else ():
            recorder = lane.recorder
            if recorder is not None and not recorder.has_ended and recorder.run_update().run_id == run_id:
                lane.stop()
                return "Stopping this trial after its current step."
        raise UsageError("That trial is not running.")

    def failed_run(self) -> FailedRun | None:
        """Return the earliest failed trial whose frames engines still keep, which only the last trial of a lane can be."""
        failed: list[tuple[float, FailedRun]] = []
        for lane in self._lanes:
            if lane.failed is not None and lane.failed.has_failed and lane.recorder is not None:
                run = lane.recorder.run_update()
                lane.failed.trial = run.name
                failed.append((run.started, lane.failed))
        return min(failed, key=lambda one: one[0])[1] if failed else None

    def check_none(self) -> None:
        """Raise a `UsageError` if trials are running, as they do not support what single runs do."""
        if self._trials is not None:
            raise UsageError("Trials can't be paused. Stop ends all of them.")

    def stop(self) -> bool:
        """Stop the engines of all lanes; return whether there were any lanes."""
        lanes, self._lanes = self._lanes, []
        threads = [threading.Thread(target=lane.engines.stop) for lane in lanes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if lanes:
            self._tell(ClusterUpdate(phase="stopped"))
        return bool(lanes)

    def _get(self, wanted: list[ClusterOptions]) -> list[Lane]:
        """Return a lane for each of `wanted`: the existing lanes if they fit, else new ones."""
        if [lane.options for lane in self._lanes] != wanted:
            self.stop()
            self._lanes = [Lane(options, self._store, on_news=self._note, others=self._folders_but(options)) for options in wanted]
        return list(self._lanes)

    def _folders_but(self, options: ClusterOptions) -> Callable[[], list[Path]]:
        """Return a function that returns the blob folders of the other lanes; they are known only once these have engines."""
        return lambda: [lane.folder for lane in self._lanes if lane.options != options and lane.folder is not None]

    def _note(self) -> None:
        with self._telling:  # many threads: an older state must not be reported after a newer one
            if lanes := self._lanes:
                self._tell(_all_engines(lanes))
        self._on_news()

    def _tell(self, update: ClusterUpdate) -> None:
        with self._telling:
            if update != self._told:
                self._told = update
                self._on_cluster(update)


def lanes_for(options: RunOptions, num_trials: int) -> list[ClusterOptions]:
    """Return the cluster options of each lane: as many lanes as there are engines for, and at most one per trial.

    Raises
    ------
    UsageError
        There are too few engines for a single trial, or the requested devices do not exist.
    """
    launcher = find_launcher(options.cluster.launcher)
    return launcher.lanes(options.cluster, engines_per_lane=options.engines_per_trial, at_most=num_trials)


def _all_engines(lanes: Sequence[Lane]) -> ClusterUpdate:
    """Return the engines of all lanes as those of a single cluster."""
    updates = [lane.engines.update for lane in lanes]
    engines = [engine for update in updates for engine in update.engines]
    phases = [update.phase for update in updates]
    phase = next((phase for phase in ("stopping", "starting", "running") if phase in phases), "stopped")
    return ClusterUpdate(
        phase=phase,  # type: ignore[arg-type]
        engines=[replace(engine, rank=rank) for rank, engine in enumerate(engines)],
        detail=next((update.detail for update in updates if update.detail), ""),
    )
