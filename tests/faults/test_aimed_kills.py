"""Engines killed at the worst moments under each strategy that divides models: in a forward pass, a step, a transfer, a snapshot.

Whatever the place, the run ends with the bits that it ends with undisturbed, and has used each sample once in the history that counts.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import NamedTuple

import psutil
import pytest

from jupyter_dtrain.system.resources import OVERFLOW
from tests.faults.disturbed import SETUP, Disturbed, check_checkpoints
from tests.faults.mortal import Aim
from tests.faults.test_corpus_killed import ENGINE, MORTAL

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
"""The first case of each strategy starts the engines and runs the cell twice undisturbed: 44 s on two idle cores, for four engines."""

MORTAL_MODULE = """
def die_in(place):
    import os, signal
    import torch.distributed as dist
    # No comparison, which would make the backward pass one that may not be linear: a pipeline sends no activations of such a model.
    if os.path.exists("die") and f"{place} {dist.get_rank()}" in [open("die").read()]:
        os.kill(os.getpid(), signal.SIGKILL)

class DiesInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        die_in("backward")
        return gradient

class Mortal(nn.Module):
    def forward(self, x):
        die_in("forward")
        return DiesInBackward.apply(x).relu()
"""
LARGE = "nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 96), Mortal(), nn.Linear(96, 96), nn.LayerNorm(96), nn.ReLU(), "
"""Enough layers for two stages, a pair that is divided by columns and by rows, and a layer whose columns are gathered."""
LAYERS = MORTAL_MODULE + SETUP.replace("nn.BatchNorm1d(96), nn.ReLU()", "nn.BatchNorm1d(96), Mortal()").replace(
    "nn.Linear(96, 96), nn.ReLU(), ", LARGE
)
STAGES = LAYERS.replace("nn.BatchNorm1d", "nn.LayerNorm")  # so that activations are handed on

COMM = "jupyter_dtrain.engine.comm"
STRATEGIES = "jupyter_dtrain.engine.strategies"
MEETING = f"{COMM}.meeting_place:MeetingPlace._meet"
"""Ranks have shown each other what they have, and nobody has read it."""
ANYWHERE: dict[str, Aim | None] = {
    "forward": None,
    "backward": None,
    "step": Aim("torch.optim.adam:adam", ends=True),
    "copy for a snapshot": Aim(
        "jupyter_dtrain.engine.snapshot.put_together:FilledFiles._room_for", "jupyter_dtrain.engine.snapshot.put_together:FilledFiles.fill"
    ),
    "writing of a snapshot": Aim("jupyter_dtrain.engine.snapshot.snapshot_files:SnapshotWriter.write"),
}
SHARDS: dict[str, Aim | None] = {
    "fetching of rows": Aim(f"{COMM}.arena:Arena.read"),
    "a whole parameter": Aim(f"{STRATEGIES}.zero3.parameter_shard:ParameterShard.fetch", ends=True),
    "reduction of a unit": Aim(MEETING, f"{COMM}.shared_memory:SharedMemory.reduce_scatter"),
}
HANDED_ON: dict[str, Aim | None] = {
    "half a message": Aim(f"{COMM}.mailbox:FileMailbox._write", f"{COMM}.mailbox:FileMailbox.send", ends=True),
    "a message that is sent": Aim(f"{COMM}.mailbox:FileMailbox.send", ends=True),
    "an answer for another stage": Aim(f"{STRATEGIES}.pipeline.stage_requests:StageRequests._reply"),
}
COLUMNS: dict[str, Aim | None] = {
    "gathering of columns": Aim(MEETING, f"{STRATEGIES}.tensor_parallel.column_parallel:Columns.all_of"),
    "sum over columns": Aim(MEETING, f"{STRATEGIES}.tensor_parallel.column_parallel:Columns.total"),
}
OVER_GROUPS: dict[str, Aim | None] = {"reduction over groups": SHARDS["reduction of a unit"]}


class Way(NamedTuple):
    """A strategy, on so many engines, and where these are killed."""

    options: str
    engines: int
    setup: str
    places: dict[str, Aim | None]


WAYS = {
    "zero3": Way("--strategy zero3", 2, LAYERS, ANYWHERE | SHARDS),
    "pipeline": Way("--strategy pipeline", 2, STAGES, ANYWHERE | HANDED_ON),
    "tensor": Way("--strategy tensor", 2, LAYERS, ANYWHERE | COLUMNS),
    "dp=2,dp_shard=2": Way(
        "--mesh dp=2,dp_shard=2", 4, LAYERS, ANYWHERE | SHARDS | {"rows of the other groups": Aim(f"{COMM}.arena:Arena.read_of_others")}
    ),
    "dp=2,pp=2": Way("--mesh dp=2,pp=2", 4, STAGES, ANYWHERE | HANDED_ON | OVER_GROUPS),
    "dp=2,tp=2": Way("--mesh dp=2,tp=2", 4, LAYERS, ANYWHERE | COLUMNS | OVER_GROUPS),
}


class Divided(NamedTuple):
    """A cell under one of the ways."""

    way: Way
    run: Disturbed


@pytest.fixture(scope="module", params=WAYS)
def divided(request) -> Iterator[Divided]:
    way = WAYS[request.param]
    notebook: Disturbed = request.getfixturevalue({2: "two", 4: "four"}[way.engines])
    with notebook.another(way.setup, options=way.options) as run:
        yield Divided(way, run)


@pytest.fixture
def aimed(divided) -> Iterator[Divided]:
    """Those engines that live afterwards die nowhere any more."""
    yield divided
    notebook = divided.run.notebook
    notebook.end_running()
    (notebook.folder / "die").unlink(missing_ok=True)
    notebook.run(f"%distribute start -n {divided.way.engines} --device cpu")
    for rank in range(divided.way.engines):
        notebook.value(f"{ENGINE.format(rank)}.apply_sync({MORTAL}.live)")


PLACES = [pytest.param(name, place, id=f"{name}-{place}") for name, way in WAYS.items() for place in way.places]


@pytest.mark.parametrize("rank", [0, -1])
@pytest.mark.parametrize(("divided", "place"), PLACES, indirect=["divided"])
def test_an_engine_is_killed(aimed, place, rank):
    way, run = aimed
    rank %= way.engines
    sign, text = run.notebook.folder / "die", f"{place} {rank}"
    aim = way.places[place]
    if aim is not None:
        run.notebook.run(f"%distribute start -n {way.engines} --device cpu")
        told = f"{MORTAL}.Aim{tuple(aim)!r}, {str(sign)!r}, {text!r}"
        run.notebook.value(f"{ENGINE.format(rank)}.apply_sync({MORTAL}.die_at, {told})")
    cell = run.start(f"{way.options} {'--checkpoint-every 20' if 'snapshot' in place else ''}")
    run.wait_for_snapshot(cell)
    sign.write_text(text)
    run.notebook.wait(lambda: not psutil.pid_exists(run.pids[rank]) or not cell.running, "its death", cell)
    sign.unlink()
    said = run.finish(cell)
    assert f"Lost rank {rank} (its process has ended): resuming from step " in said
    assert "sends no activations" not in said
    assert "does not shard" not in said
    check_checkpoints(run.notebook, finished=True)
    assert [path for path in run.memory.glob(".*") if path.name != OVERFLOW] == [], "snapshots that nobody needs"


def test_all_engines_are_killed(divided):
    way, run = divided
    cell = run.start(way.options)
    run.wait_for_snapshot(cell)
    for pid in run.pids:
        os.kill(pid, signal.SIGKILL)
    lost = ", ".join(map(str, range(way.engines)))
    assert f"Lost ranks {lost} (their processes have ended): resuming from step " in run.finish(cell)


def test_before_there_is_a_snapshot(divided):
    way, run = divided
    cell = run.start(way.options)
    run.wait_for_step(1, cell)
    os.kill(run.pids[-1], signal.SIGKILL)
    assert "resuming from " in run.finish(cell)
