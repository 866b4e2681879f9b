"""Subscriptions that record a run: engine events, output of ranks, changes of the ranks; and its checkpoint writer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..checkpoint.checkpoint_commands import keep_facts
from ..checkpoint.folder import CheckpointFolder
from ..checkpoint.metadata import Checkpoint
from ..checkpoint.writer import CheckpointWriter
from ..engine.task import Task
from ..protocol import RECORDED_EVENTS
from ..protocol.bus import Bus
from ..runs.persister import Recording
from ..strategies import Feature
from .main_thread_output import Output
from .run_events import AllPaused, Interrupted, RanksChanged, RankShown, WentBack


def record(events: Bus, recording: Recording, output: Output, *, counts_steps: bool, on_news: Callable[[], None]) -> None:
    """Subscribe `recording` to the events of its run; `on_news` is called, on any thread, when views have something new.

    `counts_steps` says whether the run's strategy counts steps: if so, an interrupt takes effect at the end of a step.
    """
    recorder = recording.recorder

    def pause(_: AllPaused) -> None:
        recorder.set_phase("paused")
        on_news()

    def go_back(event: WentBack) -> None:
        folder = recording.folder
        recording.go_back(event.step, before=(lambda _: None) if folder is None else partial(keep_facts, folder, event.step))
        on_news()

    def note_interrupt(_: Interrupted) -> None:
        recorder.set_phase("stopping")
        how = "stopping after this step" if counts_steps else "the cell leaves where it is, on all engines"
        output.say(f"Interrupted: {how}. Interrupt again to abort now.")

    for kind in RECORDED_EVENTS:
        events.subscribe(kind, recorder.apply)
        events.subscribe(kind, lambda _: on_news())
    events.subscribe(RankShown, lambda event: recording.log.add(event.rank, event.kind, event.content))
    events.subscribe(AllPaused, pause)
    events.subscribe(WentBack, go_back)
    events.subscribe(Interrupted, note_interrupt)
    events.subscribe(RanksChanged, lambda event: recorder.begin_again(event.world_size))


def writer_of(recording: Recording, task: Task, output: Output, *, expects_best: bool = True) -> CheckpointWriter | None:
    """Return the writer of the run's checkpoints; ``None`` if the run has no folder or its strategy no snapshots."""
    folder = recording.folder
    if folder is None or Feature.SNAPSHOT not in task.strategy.supports:
        return None

    def on_written(checkpoint: Checkpoint) -> None:
        recording.recorder.note_checkpoint(checkpoint.step)

    return CheckpointWriter(CheckpointFolder(folder), task, say=output.say, on_written=on_written, expects_best=expects_best)
