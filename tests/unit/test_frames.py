"""What goes between the notebook's process and a host's agent."""

from __future__ import annotations

import io

import pytest

from jupyter_dtrain.cluster.hosts.frames import LONGEST, checked_name, read_frame, write_frame
from jupyter_dtrain.cluster.hosts.host_agent import HostAgent
from jupyter_dtrain.errors import ClusterError


def test_what_is_written_is_read():
    file = io.BytesIO()
    write_frame(file, {"do": "put", "name": "a"}, memoryview(b"\0" * 5))
    write_frame(file, {"do": "stop"})
    file.seek(0)
    assert read_frame(file) == ({"do": "put", "name": "a"}, b"\0" * 5)
    assert read_frame(file) == ({"do": "stop"}, b"")
    assert read_frame(file) is None


def test_one_that_is_cut_off_is_the_end():
    file = io.BytesIO()
    write_frame(file, {"do": "put"}, b"12345")
    assert read_frame(io.BytesIO(file.getvalue()[:-1])) is None


def test_what_is_no_frame_is_an_error():
    with pytest.raises(ClusterError, match="another program, such as a login script, has written"):
        read_frame(io.BytesIO((LONGEST + 1).to_bytes(4, "big") * 2))


@pytest.mark.parametrize("name", ["../key", "/etc/passwd", "a/../../b", ""])
def test_a_file_elsewhere_is_refused(name):
    with pytest.raises(ClusterError):
        checked_name(name)


def test_an_agent_refuses_what_it_does_not_know_and_ends_with_its_input():
    requests, answers = io.BytesIO(), io.BytesIO()
    write_frame(requests, {"do": "run_this", "number": 1})
    write_frame(requests, {"do": "missing", "names": ["../key"], "number": 2})
    requests.seek(0)
    HostAgent(requests, answers).serve()
    answers.seek(0)
    answers.readline()
    found = []
    while (frame := read_frame(answers)) is not None:
        found.append(frame[0])
    hello, unknown, elsewhere = found
    assert hello["event"] == "hello"
    assert "does not know" in unknown["error"]
    assert "is no file of a cluster" in elsewhere["error"]
