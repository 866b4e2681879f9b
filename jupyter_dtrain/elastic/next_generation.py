"""Step from one generation to the next: why a run continues, from which snapshot, and with which task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from ..checkpoint.host_snapshots import snapshots_on
from ..checkpoint.load import RollBack
from ..checkpoint.snapshot_index import ON_ITS_WAY, CompleteSnapshot, SnapshotKeeper
from ..engine.side_effects.journal_entries import cut_back, go_on_from
from ..engine.task import Resume, Task
from ..engine.verify.report import GoBack
from ..protocol.bus import Bus
from .generation import Generation
from .pause import Pauses
from .recovery import EngineReplacement, place_of
from .run_events import WentBack
from .worker_group import WorkerResult


@dataclass(frozen=True)
class RestartReason:
    """Why a run continues after all its ranks have left; false if it does not.

    Attributes
    ----------
    lost : list of WorkerResult
        Ranks whose engines were lost.
    back : CompleteSnapshot, optional
        The snapshot to resume from, if the user has ordered a roll-back.
    more : bool
        There is an engine for one more rank.
    count_targets : bool
        The ranks must count targets in every batch from now on.
    found : GoBack, optional
        What ``--verify`` found not to be shardable, and the last step that it has verified.
    full_batch : sequence of str
        Classes of models that need full batches from now on.
    """

    lost: list[WorkerResult]
    back: CompleteSnapshot | None
    more: bool
    count_targets: bool
    found: GoBack | None = None
    full_batch: Sequence[str] = ()

    @classmethod
    def of(cls, ends: Sequence[WorkerResult], back: CompleteSnapshot | None, *, more: bool) -> Self:
        """Return the reason for ranks that ended with `ends`."""
        outcomes = [end.outcome for end in ends if end.outcome is not None]
        return cls(
            [end for end in ends if end.lost],
            back,
            more=more,
            count_targets=any(outcome.count_targets for outcome in outcomes),
            found=next((outcome.go_back for outcome in outcomes if outcome.go_back is not None), None),
            full_batch=sorted({outcome.full_batch for outcome in outcomes} - {""}),
        )

    def __bool__(self) -> bool:
        back = self.back is not None or self.count_targets or self.found is not None or bool(self.full_batch)
        return bool(self.lost or self.more or back)


class NextGeneration:
    """Prepare the next generation of a run.

    Parameters
    ----------
    replacement : EngineReplacement
        Holds the engines.
    keeper : SnapshotKeeper
    pauses : Pauses
    roll_back : RollBack
        Holds the roll-back that the user has ordered, if any.
    events : Bus
        The run's; gets `WentBack`.
    tell : callable
        Shows a line to the user.
    """

    def __init__(
        self,
        replacement: EngineReplacement,
        *,
        keeper: SnapshotKeeper,
        pauses: Pauses,
        roll_back: RollBack,
        events: Bus,
        tell: Callable[[str], None],
    ) -> None:
        self._replacement, self._keeper, self._pauses, self._roll_back = replacement, keeper, pauses, roll_back
        self._events, self._tell = events, tell
        self._growing = False  # the ranks shall stop because there is an engine for one more,
        self._grow_after: CompleteSnapshot | None = None  # once there is a snapshot newer than this

    def reason(self, ends: list[WorkerResult]) -> RestartReason:
        """Return why the run continues, given how its ranks ended."""
        stopped = any(end.outcome is not None and end.outcome.stopped for end in ends)
        back = self._roll_back.pop() if stopped or any(end.lost for end in ends) else None
        more, self._growing = self._growing and stopped, False
        return RestartReason.of(ends, back, more=more)

    def grow(self, execution: Generation) -> None:
        """Stop the ranks after a fresh snapshot once there are engines for more ranks."""
        for line in self._replacement.cluster.news_of_hosts():
            self._tell(line)
        if not self._replacement.cluster.prepare_spare() or self._pauses.reached:
            return
        if not self._growing:
            self._growing, self._grow_after = True, self._keeper.newest
            self._keeper.hasten()
        elif self._keeper.newest is not self._grow_after:
            execution.call_back()

    def after(self, cause: RestartReason, task: Task, execution: Generation) -> Task | None:
        """Prepare the next generation and return its task; ``None`` if there can be none."""
        self._keeper.commit(ON_ITS_WAY)
        if cause.back is None:
            self._publish()
        if cause.back is not None:
            self._keeper.go_back(cause.back)
            self._keeper.publish()
            self._replacement.group.leave()
            if task.file_log is not None:
                go_on_from(task.file_log, cause.back.number, step=cause.back.step, place=cause.back.place)
            self._events.publish(WentBack(step=cause.back.step))
            self._tell(f"Going back to step {cause.back.step}.")
        newest = self._keeper.newest
        if cause.count_targets:
            task = replace(task, count_targets=True)
            self._events.publish(WentBack(step=newest.step if newest is not None else 0))
            self._tell(f"A target is ignored for the first time: resuming from {place_of(newest)}, counting them in every batch.")
        if cause.found is not None:
            if newest is not None and newest.step > cause.found.checked:
                newest = None
                self._keeper.begin_anew()
            task = replace(task, whole=(*task.whole, *(finding.kind for finding in cause.found.findings)))
            self._events.publish(WentBack(step=newest.step if newest is not None else 0))
            self._tell(f"{cause.found.message()} Resuming from {place_of(newest)} with it on the whole batch.")
        if cause.full_batch:
            task = replace(task, full_batch=task.full_batch | {*cause.full_batch})
            self._events.publish(WentBack(step=newest.step if newest is not None else 0))
            names = ", ".join(name.rpartition(".")[2] for name in cause.full_batch)
            self._tell(
                f"{names} goes by all samples of a batch from here on: resuming from {place_of(newest)}, with global batches for it."
            )
        if cause.lost and not self._replacement.replace(cause.lost, newest):
            return None
        if cause.lost and self._replacement.has_new_hosts:
            self._send(task)
        if cause.more and not cause.lost:
            self._replacement.take_back(newest, send=lambda: self._send(task))
        return self._task_of_next(task, execution)

    def _send(self, task: Task) -> None:
        """Send the run's files and the newest snapshot to hosts that have neither."""
        self._replacement.cluster.files.send(task.parcel.keys)
        self._publish()

    def _publish(self) -> None:
        if not self._keeper.publish():
            self._tell("A part of the last snapshot is lost with its host.")

    def _task_of_next(self, task: Task, execution: Generation) -> Task:
        met = self.met(task)
        snapshot = self._keeper.newest
        # In this order: what was printed before a snapshot has come before it, and is not printed again.
        seen = execution.close_output()
        number, world_size = (snapshot.number, snapshot.world_size) if snapshot is not None else (None, task.world_size)
        if task.file_log is not None:
            cut_back(task.file_log, number)
        resume = Resume(number=number, world_size=world_size, seen=seen)
        return replace(met, resume=resume, pause=self._pauses.resume(met.world_size), generation=task.generation + 1)

    def met(self, task: Task) -> Task:
        """Return `task` with the rendezvous, world size and folders of the current engines."""
        met = self._replacement.group.rendezvous(task)
        if (folder := self._replacement.cluster.blob_dir) != self._keeper.store.address.parent:
            self._keeper.store = snapshots_on(self._replacement.cluster, task.snapshot_folder.name)
        return replace(
            met,
            world_size=self._replacement.group.num_ranks,
            blob_folder=folder,
            snapshot_folder=self._keeper.store.address,
            spans_hosts=self._replacement.cluster.spans_hosts,
        )
