"""Calls of functions on engines: what comes back, and that it always comes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from jupyter_dtrain.cluster import ranked_engines
from jupyter_dtrain.cluster.client import EngineChannel
from jupyter_dtrain.cluster.local import LocalCluster
from jupyter_dtrain.cluster_options import ClusterOptions

LIMIT = 30.0  # seconds; every wait ends at a condition, this is for the day it never comes


@pytest.fixture(scope="module")
def channel():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranked_engines, "WARM_MODULES", ())  # nothing is computed here
        cluster = LocalCluster.start(ClusterOptions(num_engines=2, device="cpu"))
    yield EngineChannel(cluster.client)
    cluster.stop()


def wait_for(tasks):
    deadline = time.monotonic() + LIMIT
    while not all(task.done for task in tasks):
        assert time.monotonic() < deadline, f"no reply: {[task.done for task in tasks]}"
        time.sleep(0.0005)
    return [task.result() for task in tasks]


def test_replies_that_come_while_the_next_call_is_sent_are_not_missed(channel):
    """A socket that is written to past its stream forgets to tell the stream of a message that arrives just then."""
    for number in range(600):
        assert wait_for([channel.call(engine, int, str(number)) for engine in (0, 1)]) == [number, number]


def test_an_error_of_the_function_is_raised_here(channel):
    good, bad = channel.call(0, int, "7"), channel.call(1, int, "seven")
    with pytest.raises(Exception, match="invalid literal for int"):
        wait_for([good, bad])
    assert good.result() == 7


def test_what_is_printed_is_heard_and_complete_at_its_end(channel):
    heard: list[tuple[str, dict[str, str]]] = []
    task = channel.call(1, exec, "for number in range(3): print(number)", on_message=lambda kind, content: heard.append((kind, content)))
    wait_for([task])
    deadline = time.monotonic() + LIMIT
    while not task.output_done:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert "".join(content["text"] for kind, content in heard if kind == "stream") == "0\n1\n2\n"


def test_an_engine_is_where_the_notebook_is(channel):
    assert wait_for([channel.call(0, Path.cwd)]) == [Path.cwd()]
