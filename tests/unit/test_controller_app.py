"""What the controller does otherwise than ipyparallel's."""

from __future__ import annotations

from unittest import mock

from ipyparallel.controller.heartmonitor import HeartMonitor
from jupyter_client.session import Session

from jupyter_dtrain.cluster.controller_app import registering


def test_an_engine_is_registered_with_its_first_heartbeat_and_once(monkeypatch):
    told: list[list[str]] = []
    for stream in ("ping_stream", "pong_stream", "monitor_stream"):
        monkeypatch.setattr(HeartMonitor, stream, mock.Mock())
    monkeypatch.setattr(Session, "send", lambda _session, _stream, _kind, content, ident: told.append(content["hearts"]))
    monitor, hear = HeartMonitor(session=Session()), registering(HeartMonitor.handle_pong)
    monitor.beat()
    ping = str(monitor.lifetime).encode()
    hear(monitor, [b"engine", b"a beat of long ago"])
    assert told == []
    hear(monitor, [b"engine", ping])
    assert told == [["engine"]]
    hear(monitor, [b"engine", ping])
    hear(monitor, [b"another", ping])
    assert told == [["engine"], ["another"]]
    monitor.beat()
    assert told == [["engine"], ["another"]]
    assert monitor.hearts == {b"engine", b"another"}
    assert monitor.on_probation == {}
