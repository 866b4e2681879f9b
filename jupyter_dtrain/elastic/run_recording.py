"""What the record of a run takes from its bus: events of engines, what ranks show, and what becomes of the ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..checkpoint.checkpoint_commands import keep_facts
from ..protocol import RECORDED_EVENTS, Message
from ..protocol.bus import Bus
from ..runs.persister import Recording
from .run_events import AllPaused, RanksChanged, RankShown, WentBack


def record(events: Bus, recording: Recording, *, on_news: Callable[[], None]) -> None:
    """Let `recording` take what is published of its run; `on_news` is called, on any thread, when views of it have something new."""
    recorder = recording.recorder

    def apply(event: Message) -> None:
        recorder.apply(event)
        on_news()

    def pause(_: AllPaused) -> None:
        recorder.set_phase("paused")
        on_news()

    def go_back(event: WentBack) -> None:
        folder = recording.folder
        recording.go_back(event.step, before=(lambda _: None) if folder is None else partial(keep_facts, folder, event.step))
        on_news()

    for kind in RECORDED_EVENTS:
        events.subscribe(kind, apply)
    events.subscribe(RankShown, lambda event: recording.log.add(event.rank, event.kind, event.content))
    events.subscribe(AllPaused, pause)
    events.subscribe(WentBack, go_back)
    events.subscribe(RanksChanged, lambda event: recorder.begin_again(event.world_size))
