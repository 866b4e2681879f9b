"""The lanes of a kernel, and what runs on them."""

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
    """Runs one cell's trials at a time. Its lanes stay for the next cell with trials that fits them.

    Parameters
    ----------
    store : RunStore
    on_begin : callable
        Told of what views are to show of the trials of each cell.
    on_cluster : callable
        Told of all engines of the lanes, on any thread.
    on_news : callable
        Called, on any thread, when there is something new of a trial.
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
        """Run a cell's trials on lanes with the engines `wanted`, and return what has become of them: see :meth:`TrialScheduler.run`."""
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
        """Ask all trials to stop, and return how they do; ``None``: there are none. Any thread may call this."""
        if self._trials is None or self._shown is None:
            return None
        self._trials.stop()
        self._shown.set_stopping()
        return "Stopping all trials, each after its current step."

    def stop_trial(self, run_id: str | None) -> str:
        """Ask one trial to stop, and return how it does; the others go on. A `UsageError`: it is not running. Any thread may call this."""
        for lane in self._lanes if self._trials is not None else ():
            recorder = lane.recorder
            if recorder is not None and not recorder.has_ended and recorder.run_update().run_id == run_id:
                lane.stop()
                return "Stopping this trial after its current step."
        raise UsageError("That trial is not running.")

    def failed_run(self) -> FailedRun | None:
        """Return the first of the trials that were the last on their engines and have failed: these keep the frames of no other."""
        failed: list[tuple[float, FailedRun]] = []
        for lane in self._lanes:
            if lane.failed is not None and lane.failed.has_failed and lane.recorder is not None:
                run = lane.recorder.run_update()
                lane.failed.trial = run.name
                failed.append((run.started, lane.failed))
        return min(failed, key=lambda one: one[0])[1] if failed else None

    def check_none(self) -> None:
        """Raise a `UsageError` if trials are running, which cannot do what single runs can."""
        if self._trials is not None:
            raise UsageError("Trials can't be paused. Stop ends all of them.")

    def stop(self) -> bool:
        """Stop the engines of all lanes; return whether there were any."""
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
        """Return a lane for each of `wanted`: those that there are, or new ones in their place."""
        if [lane.options for lane in self._lanes] != wanted:
            self.stop()
            self._lanes = [Lane(options, self._store, on_news=self._note, others=self._folders_but(options)) for options in wanted]
        return list(self._lanes)

    def _folders_but(self, options: ClusterOptions) -> Callable[[], list[Path]]:
        """Return what tells where a lane finds what others have stored: which of them is first, nobody knows before."""
        return lambda: [lane.folder for lane in self._lanes if lane.options != options and lane.folder is not None]

    def _note(self) -> None:
        with self._telling:  # many threads: what is older is not to be told after what is newer
            if lanes := self._lanes:
                self._tell(_all_engines(lanes))
        self._on_news()

    def _tell(self, update: ClusterUpdate) -> None:
        with self._telling:
            if update != self._told:
                self._told = update
                self._on_cluster(update)


def lanes_for(options: RunOptions, num_trials: int) -> list[ClusterOptions]:
    """Return the engines of each lane: as many lanes as there are engines for, and no more than trials.

    Raises
    ------
    UsageError
        There are too few engines for a single trial, or not the devices that are asked for.
    """
    launcher = find_launcher(options.cluster.launcher)
    return launcher.lanes(options.cluster, engines_per_lane=options.engines_per_trial, at_most=num_trials)


def _all_engines(lanes: Sequence[Lane]) -> ClusterUpdate:
    """Return the engines of all lanes as those of one cluster."""
    updates = [lane.engines.update for lane in lanes]
    engines = [engine for update in updates for engine in update.engines]
    phases = [update.phase for update in updates]
    phase = next((phase for phase in ("stopping", "starting", "running") if phase in phases), "stopped")
    return ClusterUpdate(
        phase=phase,  # type: ignore[arg-type]
        engines=[replace(engine, rank=rank) for rank, engine in enumerate(engines)],
        detail=next((update.detail for update in updates if update.detail), ""),
    )
