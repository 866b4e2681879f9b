"""An agent that connects by itself: its streams are whole, its end is noticed, and nobody else gets in."""

from __future__ import annotations

import socket
import threading
import time
from datetime import timedelta

import pytest
import zmq

from jupyter_dtrain.cluster.hosts.dialed_link import DialedLink, accept, invitation
from jupyter_dtrain.errors import ClusterError


@pytest.fixture
def link():
    link = DialedLink(lambda: ["the last line"])
    yield link
    link.kill()


@pytest.fixture
def met(link):
    """The link, and its agent's ends."""
    requests, answers, _, _ = accept(invitation([link]), 0)
    return link, requests, answers


def test_much_goes_either_way_at_once_and_a_slow_reader_is_waited_for(met):
    link, requests, answers = met
    out, back = bytes(range(256)) * (1 << 15), bytes(reversed(range(256))) * (1 << 15)  # 8 MiB each

    def write(file, data):
        file.write(data)
        file.flush()

    writers = [threading.Thread(target=write, args=pair) for pair in ((link.requests, out), (answers, back))]
    for writer in writers:
        writer.start()
    time.sleep(0.2)  # nobody reads: what is not read waits
    assert requests.read(len(out)) == out
    assert link.answers.read(len(back)) == back
    for writer in writers:
        writer.join()


def test_each_agent_has_a_link_of_its_own(link):
    second = DialedLink()
    _, answers, _, _ = accept(invitation([link, second]), 1)
    answers.write(b"second")
    answers.flush()
    assert second.answers.read(6) == b"second"
    assert not link.has_ended
    second.kill()


def test_the_end_of_the_agent_is_noticed_behind_all_that_it_said(met):
    link, requests, answers = met
    answers.write(b"bye")
    answers.close()
    requests.close()
    assert link.answers.read() == b"bye"
    assert link.wait(timedelta(seconds=5))
    assert list(link.words()) == ["the last line"]


def test_an_agent_is_free_when_the_link_is_killed(met):
    link, requests, _ = met
    link.kill()
    assert requests.read() == b""


def test_whoever_has_no_key_gets_nothing_and_ends_nothing(met):
    link, requests, _ = met
    with socket.create_connection(("127.0.0.1", link.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
    other: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    other.linger = 0
    other.curve_serverkey = zmq.curve_keypair()[0]
    other.curve_publickey, other.curve_secretkey = zmq.curve_keypair()
    other.connect(f"tcp://127.0.0.1:{link.port}")
    other.send(b"hello")
    assert not other.poll(500)
    other.close()
    link.requests.write(b"only you")
    link.requests.flush()
    assert requests.read(8) == b"only you"
    assert not link.has_ended


def test_an_agent_that_finds_nobody_says_where_it_looked(link, monkeypatch):
    invited = invitation([link])
    link.kill()
    with pytest.raises(ClusterError, match=rf"cannot be reached from here \(.*:{link.port}\)"):
        accept(invited, 0)


def test_who_was_invited_finds_the_link_that_takes_the_place_of_one_that_has_ended(met):
    first, requests, answers = met
    invited = invitation([first])
    requests.close()
    answers.close()
    assert first.wait(timedelta(seconds=5))
    second = DialedLink(like=first)
    try:
        assert (second.port, second.key) == (first.port, first.key)
        requests, answers, _, _ = accept(invited, 0)
        answers.write(b"here again")
        answers.flush()
        assert second.answers.read(10) == b"here again"
    finally:
        second.kill()
