"""What ranks print comes to the cell once, also from engines that die while others take their places."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_dtrain.elastic.rank_messages import RankMessages
from jupyter_dtrain.elastic.run_events import RankShown
from jupyter_dtrain.engine.side_effects.shown_output import Count
from jupyter_dtrain.protocol.bus import Bus


class Shown:
    """Collects what a cell would show."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def stream(self, _name: str, text: str) -> None:
        self.texts.append(text)


@pytest.fixture(params=["main", "all"])
def messages(request) -> Any:
    events = Bus()
    shown: Any = Shown()
    task: Any = SimpleNamespace(world_size=2, resume=None, options=SimpleNamespace(output=request.param))
    found: Any = RankMessages(task, events, shown)
    found.shown, found.published = shown, []
    events.subscribe(RankShown, lambda event: found.published.append(event.content["text"]))
    return found


def printed(text: str) -> dict[str, str]:
    return {"name": "stdout", "text": text}


def text_of(messages: Any) -> str:
    return "".join(messages.shown.texts).replace("[0] ", "")


def test_what_arrives_while_engines_are_replaced_is_shown_and_counted(messages):
    listen = messages.listener(0)
    listen("stream", printed("1\n"))
    messages.show_rest(lambda: False, timedelta(0), timedelta(0))
    listen("stream", printed("2\n"))
    assert messages.close()[0] == Count(lines=2)
    assert text_of(messages) == "1\n2\n"


def test_what_arrives_later_is_left_to_the_next_generation(messages):
    listen = messages.listener(0)
    listen("stream", printed("1\n"))
    messages.show_rest(lambda: False, timedelta(0), timedelta(0))
    seen = messages.close()
    listen("stream", printed("2\n"))
    assert messages.close() == seen == (Count(lines=1), Count())
    assert text_of(messages) == "1\n"
    assert messages.published == ["1\n"]
