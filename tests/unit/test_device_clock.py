"""What the threads of an engine ask of a GPU: nothing that a failed one would answer with an error, or that ends a capture of the cell's.

The GPU is stood in for by a record of calls.
"""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from jupyter_dtrain.engine.telemetry.emitter import Emitter
from jupyter_dtrain.engine.telemetry.graph_capture import undisturbed_captures
from jupyter_dtrain.engine.telemetry.observer import Observer
from jupyter_dtrain.engine.timing import FORWARD, OTHER, Timing

CARD = torch.device("cuda:0")
GRAPH: Any = object()
ASSERTED = "CUDA error: device-side assert triggered"


class Card:
    """A GPU that has done at once what is launched, until it fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.has_failed, self.is_capturing, self.waited = 0.0, False, False, False
        card = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                pass

            def record(self) -> None:
                card.asked()
                self.time = card.now

            def query(self) -> bool:
                return card.asked()

            def synchronize(self) -> None:
                card.asked()
                card.waited = True

            def elapsed_time(self, other: Event) -> float:
                card.asked()
                return 1000 * (other.time - self.time)

        self.event = Event
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.is_capturing)

    def asked(self) -> bool:
        if self.has_failed:
            raise RuntimeError(ASSERTED)
        return True


@pytest.fixture
def card(monkeypatch):
    return Card(monkeypatch)


def split(timing: Timing) -> tuple[float, float]:
    (found,) = timing.drain(1)
    return found.forward, found.other  # type: ignore[attr-defined]


def test_a_card_that_fails_keeps_the_clock_from_an_error_of_its_own(card):
    timing = Timing(0, CARD)
    timing.start()
    card.now = 1.0
    before = timing.switch(FORWARD)
    card.now = 3.0
    timing.switch(before)
    assert split(timing) == (2.0, 1.0)
    timing.switch(FORWARD)
    card.has_failed = True
    timing.switch(OTHER)
    assert timing.drain(2) == []
    timing.stop()


def test_what_is_captured_into_a_graph_is_not_marked(card):
    timing = Timing(0, CARD)
    timing.start()
    card.is_capturing = True
    timing.switch(FORWARD)
    card.now = 5.0
    timing.switch(OTHER)
    assert timing.drain(1) == []
    timing.stop()


class Loss:
    """A loss on the card."""

    is_cuda = True

    def __init__(self, card: Card) -> None:
        self._card = card

    def detach(self) -> Loss:
        return self

    def numel(self) -> int:
        return 1

    def __float__(self) -> float:
        self._card.asked()
        return 0.5


def losses(card: Card, monkeypatch: pytest.MonkeyPatch, *, stream: str) -> list[float | None]:
    monkeypatch.setattr("jupyter_dtrain.engine.telemetry.observer.detached", lambda root: root)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda: "default")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream if stream == "default" else SimpleNamespace(record_event=card.event))
    observer = Observer(0)
    observer.on_backward(Loss(card), 1.0)  # type: ignore[arg-type]
    observer.finish()
    (steps,) = [message for message in observer.drain() if hasattr(message, "loss")]
    found: list[float | None] = steps.loss
    return found


def test_the_loss_of_a_failed_card_is_not_known(card, monkeypatch):
    assert losses(card, monkeypatch, stream="default") == [0.5]
    card.has_failed = True
    assert losses(card, monkeypatch, stream="default") == [None]


def test_a_loss_on_a_side_stream_is_waited_for(card, monkeypatch):
    assert losses(card, monkeypatch, stream="side") == [0.5]
    assert card.waited


def new_emitter(asked: list[int]) -> Emitter:
    """Return one with a source that counts in `asked` how often it was."""

    def source() -> list[Any]:
        asked.append(1)
        return []

    emitter = Emitter(lambda _: None, run_id="run", rank=0, interval=timedelta(seconds=9))
    emitter.add_source(source)
    return emitter


def test_nobody_is_asked_while_a_graph_is_captured(monkeypatch):
    asked: list[int] = []
    calls: list[Any] = []
    emitter = new_emitter(asked)
    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", lambda _, *given, **named: calls.append((given, named)))
    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_end", lambda _: calls.append("end"))
    with undisturbed_captures(emitter):
        torch.cuda.CUDAGraph.capture_begin(GRAPH, pool=None)
        emitter.flush()
        assert not asked
        torch.cuda.CUDAGraph.capture_end(GRAPH)
        emitter.flush()
        assert len(asked) == 1
        torch.cuda.CUDAGraph.capture_begin(GRAPH)
    emitter.close()
    assert len(asked) == 2, "a capture that the cell has not ended"
    assert calls == [((), {"pool": None}), "end", ((), {})]


def test_a_capture_that_does_not_begin(monkeypatch):
    def fail(*_):
        raise RuntimeError("operation not permitted when stream is capturing")

    asked: list[int] = []
    emitter = new_emitter(asked)
    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", fail)
    with undisturbed_captures(emitter):
        with pytest.raises(RuntimeError, match="not permitted"):
            torch.cuda.CUDAGraph.capture_begin(GRAPH)
        emitter.flush()
        assert asked
