"""The bus: who is told of what, in which order."""

from __future__ import annotations

import pytest

from jupyter_dtrain.elastic.run_events import AllPaused, WentBack
from jupyter_dtrain.protocol import Message, Notice, Progress
from jupyter_dtrain.protocol.bus import Bus

NOTICE = Notice(rank=0, text="as it is")


def test_subscribers_are_told_of_their_type_in_the_order_of_their_subscriptions():
    bus = Bus()
    told: list[object] = []
    bus.subscribe(Notice, lambda event: told.append(("first", event)))
    bus.subscribe(Message, lambda event: told.append(("second", event)))
    bus.subscribe(Notice, lambda event: told.append(("third", event)))
    bus.subscribe(WentBack, lambda event: told.append(("other", event)))
    progress = Progress(rank=0, epoch=1, batch=2, batches=None)
    for event in (NOTICE, progress, AllPaused(), WentBack(step=3)):
        bus.publish(event)
    assert told == [("first", NOTICE), ("second", NOTICE), ("third", NOTICE), ("second", progress), ("other", WentBack(step=3))]


def test_who_subscribes_later_is_told_of_what_comes_then():
    bus = Bus()
    told: list[object] = []
    bus.publish(NOTICE)
    bus.subscribe(Notice, told.append)
    bus.publish(NOTICE)
    assert told == [NOTICE]


def test_what_a_subscriber_raises_is_the_publishers():
    def fail(_: Notice) -> None:
        raise OSError("no room")

    bus = Bus()
    bus.subscribe(Notice, fail)
    with pytest.raises(OSError, match="no room"):
        bus.publish(NOTICE)
