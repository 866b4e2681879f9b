"""Where a rank stands in the user's code, as it is told when nothing goes on."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

from torch.distributed import HashStore  # type: ignore[attr-defined]  # not in torch's own list of exports

from jupyter_dtrain.engine.comm.rank_store import StoreChannel
from jupyter_dtrain.engine.telemetry.notices import at_end, standing
from jupyter_dtrain.protocol import Standing

NOBODYS = """
def call(function):
    return function()

def look():
    watcher = Thread(target=note)
    watcher.start()
    watcher.join(30)
    return True
"""  # as functions of this file would be the user's


def seen_from_inside(source: str, **names: object) -> Standing | None:
    """Run the user's `source` on this thread, and return where another sees it once `source` has `look` called."""
    found: list[Standing | None] = []
    others: dict[str, Any] = {"Thread": threading.Thread, "note": lambda: found.append(standing(3))}
    exec(compile(NOBODYS, "<string>", "exec"), others)
    namespace = {**names, "look": others["look"], "at_its_end": at_end(others["call"])}
    exec(compile(source, "<ipython-input-1>", "exec"), namespace)
    (where,) = found
    return where


def test_a_rank_that_computes_is_at_its_line():
    assert seen_from_inside("\nlook()") == Standing(rank=3, filename="<ipython-input-1>", line=2, function="<module>", waiting=False)


def test_a_rank_that_waits_for_the_words_of_others_waits():
    channel = StoreChannel(HashStore(), rank=0, world_size=2, timeout=timedelta(seconds=30))
    found = seen_from_inside("channel.words('stop', unless=look)", channel=channel)
    assert found is not None
    assert found.waiting


def test_a_rank_that_puts_together_what_spans_the_ranks_is_at_the_end():
    found = seen_from_inside("at_its_end(look)")
    assert found == Standing(rank=3, filename="", line=0, function="", waiting=True)
