"""The wire: what a message looks like as JSON, what comes back, and what is refused."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, asdict, fields

import pytest

from jupyter_dtrain import protocol
from jupyter_dtrain.errors import ProtocolError
from jupyter_dtrain.protocol import (
    ENGINE_EVENTS,
    UPDATES,
    ClusterUpdate,
    Command,
    DeviceUse,
    EngineInfo,
    Message,
    Notice,
    Points,
    Progress,
    RankStarted,
    RunUpdate,
    Scalars,
    Snapshot,
    Steps,
    TimeSplit,
    parse,
)

FLAT = [
    RankStarted(rank=1, world_size=2, host="node-a", pid=4242, device="cuda:1", device_name="NVIDIA H100"),
    Steps(
        rank=0,
        step=[1, 2],
        time=[1700000000.0, 1700000000.25],
        loss=[2.30, None],
        weight=[0.5, 0.5],
        learning_rate=[0.1, None],
        samples=[32, 32],
    ),
    Progress(rank=0, epoch=3, batch=7, batches=None),
    DeviceUse(rank=1, time=1700000001.0, utilization=87.5, memory_used=3 << 30, memory_total=80 << 30),
    TimeSplit(rank=3, step=7, data=4.1, forward=2.0, backward=3.0, communication=0.5, optimizer=0.25, other=0.15, num_workers=0),
    Scalars(rank=0, name="val/accuracy", first=0, step=[23], time=[1700000002.0], value=[0.97]),
    Notice(rank=0, text="`val_loader` is read whole by every rank."),
    protocol.StopToReturn(),
    protocol.TakeSnapshot(number=3),
    protocol.SetShares(number=2, speeds=[1.0, 0.5]),
    Command(id="c1", name="start_cluster", num_engines=2),
    Command(id="c2", name="stop_run"),
    Command(id="c3", name="get_curves", run_id="r1", curve="loss", first=10, last=20, limit=100),
]


@pytest.mark.parametrize("message", FLAT, ids=lambda message: message.type)
def test_a_message_survives_the_wire(message):
    assert parse(json.loads(json.dumps(message.to_json()))) == message


@pytest.mark.parametrize("message", FLAT, ids=lambda message: message.type)
def test_a_message_is_the_fields_that_it_has_and_shares_no_column(message):
    data = message.to_json()
    assert data == {"type": message.type, **asdict(message)}
    assert not [name for name, value in data.items() if isinstance(value, list) and value is getattr(message, name)]


@pytest.mark.parametrize("message", FLAT, ids=lambda message: message.type)
def test_what_has_come_over_the_wire_cannot_be_changed(message):
    parsed = parse(message.to_json())
    assert vars(parsed) == vars(message)
    with pytest.raises(FrozenInstanceError):
        parsed.rank = 5  # type: ignore[attr-defined]


def test_what_has_come_over_the_wire_shares_nothing_with_the_message_of_the_wire():
    data = Notice(rank=0, text="as it is").to_json()
    parsed = parse(data)
    data["text"] = "changed"
    assert parsed == Notice(rank=0, text="as it is")


def test_no_message_does_more_when_it_is_made_than_take_its_fields():
    classes = (*ENGINE_EVENTS, *protocol.ORDERS, *UPDATES, Command)
    assert not [cls for cls in classes if hasattr(cls, "__post_init__") or hasattr(cls, "__slots__")]


def test_the_type_is_the_class_name_in_snake_case():
    assert RankStarted.type == "rank_started"
    assert DeviceUse.type == "device_use"
    assert Steps.type == "steps"
    assert RankStarted.type not in {field.name for field in fields(RankStarted)}


def test_json_of_a_command():
    command = Command(id="c2", name="start_cluster", num_engines=2).to_json()
    assert {name: value for name, value in command.items() if value is not None} == {
        "type": "command",
        "id": "c2",
        "name": "start_cluster",
        "num_engines": 2,
    }


def test_json_of_a_snapshot_nests_plain_objects():
    engine = EngineInfo(rank=0, host="localhost", pid=7, device="cpu", device_name="2 cores")
    run = RunUpdate(run_id="r1", name="1", phase="running", world_size=1, started=1700000000.0, elapsed=1.5, step=3, loss=0.25)
    snapshot = Snapshot(
        version=protocol.PROTOCOL_VERSION,
        cluster=ClusterUpdate(phase="running", engines=[engine]),
        run=run,
        points=[Points(run_id="r1", name="loss", step=[1, 2, 3], time=[0.1, 0.2, 0.3], value=[3.0, 2.0, 0.25])],
    )
    data = json.loads(json.dumps(snapshot.to_json()))
    assert data["type"] == "snapshot"
    assert data["cluster"]["engines"][0] == {"rank": 0, "host": "localhost", "pid": 7, "device": "cpu", "device_name": "2 cores"}
    assert data["run"]["loss"] == 0.25
    assert data["run"]["samples_per_second"] is None
    assert data["points"][0]["value"] == [3.0, 2.0, 0.25]
    assert data["devices"] == []


def test_every_type_is_told_apart():
    classes: set[type[Message]] = {*ENGINE_EVENTS, *protocol.ORDERS, *UPDATES, protocol.Reply, Command}
    types = [cls.type for cls in classes]
    assert len(types) == len(set(types))


def test_a_new_message_class_gets_its_type():
    class GradientNorm(Message):
        pass

    assert GradientNorm.type == "gradient_norm"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"type": "teleport"}, "message of unknown type 'teleport': are both sides of the same version?"),
        ({}, "message of unknown type None: are both sides of the same version?"),
        (
            {"type": "notice", "rank": 0, "text": "hi", "colour": "red", "bold": True},
            "message 'notice' has unknown fields ['bold', 'colour']: are both sides of the same version?",
        ),
        ({"type": "notice", "rank": 0}, "missing 1 required keyword-only argument: 'text'"),
        (
            {"type": "command", "id": "c1", "name": "rm -rf"},
            "unknown command 'rm -rf'; known are stop_run, stop_trial, pause_run, resume_run",
        ),
        ({"type": "command", "id": "c1"}, "unknown command None"),
    ],
)
def test_what_is_refused(data, message):
    with pytest.raises(ProtocolError) as caught:
        parse(data)
    assert message in str(caught.value)
