"""Ranks that come to no common end: one of them has what all had, or what came from the notebook."""

from __future__ import annotations

import copy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import torch.distributed as dist

from jupyter_dtrain.engine.cell import run_cell
from jupyter_dtrain.engine.comm.process_group import shared_memory
from jupyter_dtrain.engine.strategies.zero1.sharded_optimizer import ShardedOptimizerStates
from jupyter_dtrain.engine.strategies.zero3.sharded_rows import Came
from jupyter_dtrain.engine.strategies.zero3.sharded_training import ShardedTraining
from jupyter_dtrain.serialization.pickler import Packer
from jupyter_dtrain.serialization.unpickler import Unpacker
from jupyter_dtrain.transport.blob_store import BlobFolder
from jupyter_dtrain.transport.parcel import from_parcel, to_parcel
from tests.engine.ranks import Run, double_precision
from tests.notebook.kernel import difference

SETUP = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
X, Y = torch.randn(24, 40), torch.randint(0, 30, (24,))
loader = DataLoader(TensorDataset(X, Y), batch_size=8)
model = nn.Sequential(nn.Linear(40, 260), nn.Tanh(), nn.Linear(260, 40), nn.Tanh(), nn.Linear(40, 30))
optimizer = torch.optim.SGD([{"params": part.parameters()} for part in model[::2]], lr=0.1, momentum=0.9)
"""
LOOP = """
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
KILLED = """
class Bad(float):
    def __neg__(self): raise KeyboardInterrupt
optimizer.param_groups[1]["lr"] = Bad(0.1)
"""


def state_of(namespace: dict[str, Any]) -> list[torch.Tensor]:
    """Return the parameters and moments, under the names of the cell."""
    model, optimizer = namespace["model"], namespace["optimizer"]
    return [p.detach().clone() for p in model.parameters()] + [optimizer.state[p]["momentum_buffer"].clone() for p in model.parameters()]


def arrived(value: Any) -> Any:
    """Return `value` as it arrives on an engine: large tensors in mapped files."""
    packer = Packer(namespace={})
    packer.dump(value)
    with TemporaryDirectory() as folder:
        blobs = BlobFolder(Path(folder) / "blobs")
        return Unpacker(from_parcel(to_parcel(packer.packed(), blobs), blobs), namespace={}).load()


def notebook() -> dict[str, Any]:
    """Return what the notebook's process has after some steps, as an engine gets it."""
    torch.manual_seed(0)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    run_cell(SETUP + LOOP, "setup", namespace)
    namespace.update(arrived({name: namespace[name] for name in ("X", "Y", "loader", "model", "optimizer")}))
    return namespace


@double_precision()
def one_process(_run: Run, cells: list[str]) -> list[list[torch.Tensor]]:
    namespace, found = notebook(), []
    for cell in ("", *cells):
        run_cell(cell, "cell", namespace)
        found.append(state_of(namespace))
    return found


@double_precision()
def sharded_rows(run: Run, is_killed: bool) -> tuple[bool, Any]:
    """Let rank 0 read what it lacks of parameters and moments after a cell, of which a step was interrupted or not."""
    namespace = notebook()
    model, optimizer = namespace["model"], namespace["optimizer"]
    moments = [optimizer.state[p]["momentum_buffer"] for p in model.parameters()]
    memory = shared_memory()
    assert memory is not None
    training = run.training(model, optimizer, global_batchnorm=True, global_draws=True)
    homes = frozenset(tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *moments))
    sharded = ShardedTraining(training, memory, least=0, homes=homes, arrived=[model, optimizer, *model.parameters(), *moments])
    with training.installed(), sharded.installed():
        assert all(shard.full is None for shard in sharded.store.shards())
        run_cell(LOOP, "cell", namespace)
        if is_killed:
            with pytest.raises(KeyboardInterrupt):
                run_cell(KILLED + LOOP, "cell", namespace)
        is_there = run.rank == 0 and sharded.full.make_whole_alone()
        memory.barrier(0)
    if run.rank:
        return is_there, None
    assert all(type(p) is torch.nn.Parameter for p in model.parameters())
    assert all(p.grad is None for p in model.parameters())
    assert all(optimizer.state[p]["momentum_buffer"] is kept for p, kept in zip(model.parameters(), moments, strict=True))
    return is_there, state_of(namespace)


@pytest.mark.parametrize("is_killed", [False, True])
def test_rank_0_reads_the_rows_of_ranks_that_have_left(ranks, is_killed):
    """Where they were in the middle of a step, it has what came from the notebook."""
    before, after = ranks.call(1, one_process, [LOOP])[0]
    is_there, found = ranks.call(2, sharded_rows, is_killed)[0]
    assert is_there is not is_killed
    assert difference(found, before if is_killed else after) is None


@double_precision()
def sharded_states(run: Run, end: str) -> Any:
    """Return what a rank has after a cell: of a common end, or of what the others have left, or nothing; with snapshots on the way."""
    namespace = notebook()
    model, optimizer = namespace["model"], namespace["optimizer"]
    moments = [optimizer.state[p]["momentum_buffer"] for p in model.parameters()]
    training = run.training(model, optimizer, global_batchnorm=True, global_draws=True)
    states = ShardedOptimizerStates(rank=run.rank, world_size=run.world_size, say=run.notes.append, models=lambda: [model])
    states.register([optimizer])
    with training.installed(), states.installed():
        for _ in range(2):
            run_cell(LOOP, "cell", namespace)
            here = [kept.clone() for kept in moments]
            with states.for_snapshot() as apart:
                own = [held.rank == run.rank for held in apart.held]
                shown = [optimizer.state[p]["momentum_buffer"] for p in model.parameters()]
                assert all(a is b for a, b in zip(shown, moments, strict=True))
                assert 0 < sum(own) < len(own)
            assert difference(moments, here) is None
        if end == "together":
            with states.gathered():
                pass
        else:
            left: list[Any] = [None] * run.world_size
            dist.all_gather_object(left, copy.deepcopy(states.state_dict()))
            assert states.needs_others()
            states.load_state_dicts([of for rank, of in enumerate(left) if rank != run.rank] if end == "left" else [])
        if run.rank:
            return None
        with states.quiet.on():
            assert all(optimizer.state[p]["momentum_buffer"] is kept for p, kept in zip(model.parameters(), moments, strict=True))
            return state_of(namespace)


@pytest.mark.parametrize("end", ["together", "left", "lost"])
def test_rank_0_has_the_states_that_others_have_left(ranks, end):
    """Where they have left none, it has those that came from the notebook."""
    before, _, after = ranks.call(1, one_process, [LOOP, LOOP])[0]
    found = ranks.call(2, sharded_states, end)[0]
    num_parameters = len(found) // 2
    assert difference(found[:num_parameters], after[:num_parameters]) is None
    moments = [*zip(found, before, after, strict=True)][num_parameters:]
    as_they_came = [difference(one, came) is None for one, came, _ in moments]
    assert all(is_old or difference(one, new) is None for is_old, (one, _, new) in zip(as_they_came, moments, strict=True))
    assert any(as_they_came) == (end == "lost")
    assert not all(as_they_came)


@pytest.mark.parametrize("size", [100, 3000, 10000])
def test_memory_that_is_given_back_and_used_has_again_what_it_came_with(size):
    """In a mapped file, up to its last page, which is not full, and within a message."""
    value = torch.arange(float(size), dtype=torch.float64)
    (tensor,) = arrived([value])
    came = Came(tensor)
    tensor.fill_(-1)
    came.restore(tensor)
    assert torch.equal(tensor, value)
