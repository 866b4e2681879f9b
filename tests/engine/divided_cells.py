"""How a cell is run under each strategy that divides models, with parameters of any size divided: `zero3`, `pipeline`, `tensor`, meshes."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from jupyter_dtrain.engine.comm.batch_ranks import BatchRanks
from jupyter_dtrain.engine.comm.mesh import Mesh
from jupyter_dtrain.engine.comm.process_group import shared_memory_among
from jupyter_dtrain.engine.comm.shared_memory import SharedMemory
from jupyter_dtrain.engine.strategies.data_parallel.training import DataParallelTraining
from jupyter_dtrain.engine.strategies.pipeline.staged_training import PipelineTraining
from jupyter_dtrain.engine.strategies.pipeline.strategy import _ASKED_FOR
from jupyter_dtrain.engine.strategies.tensor_parallel.groups import GroupTraining
from jupyter_dtrain.engine.strategies.tensor_parallel.layer_training import LayerTraining
from jupyter_dtrain.engine.strategies.tensor_parallel.replicated_training import ReplicatedTraining
from jupyter_dtrain.engine.strategies.zero3.hybrid_training import HybridTraining
from jupyter_dtrain.engine.strategies.zero3.sharded_training import ShardedTraining
from jupyter_dtrain.engine.tensor.placement_types import GlobalTensor
from tests.engine.ranks import Run
from tests.engine.test_zero3 import run_connected

STRATEGIES = {
    "zero3 2": {"dp_shard": 2},
    "zero3 3": {"dp_shard": 3},
    "zero3 4": {"dp_shard": 4},
    "zero3 2x2": {"dp": 2, "dp_shard": 2},
    "pipeline 2": {"pp": 2},
    "tensor 2": {"tp": 2},
    "pipeline 2x2": {"dp": 2, "pp": 2},
    "tensor 2x2": {"dp": 2, "tp": 2},
}
"""The degrees of each way's mesh, whose product is the number of ranks."""


def run_divided_cell(run: Run, strategy: str, setup: str, cell: str, compare: str) -> dict[str, Any]:
    """Run `setup` as it is and `cell` as the rank's part of a run under one of :data:`STRATEGIES`; plain on one rank."""
    degrees, output = STRATEGIES[strategy], io.StringIO()
    kind: Any = DataParallelTraining
    connect: Callable[[DataParallelTraining, SharedMemory], ShardedTraining] = partial(ShardedTraining, say=run.notes.append, least=0)
    if "pp" in degrees and run.world_size > 1:
        asked_for = _ASKED_FOR.search(cell)

        def connect(training: DataParallelTraining, memory: SharedMemory) -> ShardedTraining:
            return PipelineTraining(
                training,
                memory,
                mesh=Mesh(run.rank, degrees),
                say=run.notes.append,
                steps_done=lambda: training._observer.step,
                off=None if asked_for is None else f"`{asked_for[0]}`",
            )

    elif "tp" in degrees and run.world_size > 1:
        kind, batches = ReplicatedTraining, None
        if "dp" in degrees:
            mesh = Mesh(run.rank, degrees)
            batches = BatchRanks(*(shared_memory_among(mesh.ranks_along(axis)) for axis in ("dp", "tp")))
            kind = partial(GroupTraining, batches=batches)
        connect = partial(LayerTraining, batches=batches, say=run.notes.append, least=0)
    elif "dp" in degrees and run.world_size > 1:
        connect = partial(HybridTraining, mesh=Mesh(run.rank, degrees), say=run.notes.append, least=0)
    num_divided: list[int] = []

    def connect_counted(training: DataParallelTraining, memory: SharedMemory) -> ShardedTraining:
        divided = connect(training, memory)
        make_whole = divided.full.make_whole
        # At the end of the cell: models that it has made are among them.

        def make_whole_counted(*, on: int | None = None) -> list[tuple[GlobalTensor, torch.Tensor | None]]:
            num_divided.append(len(divided.store.shards()))
            return make_whole(on=on)

        divided.full.make_whole = make_whole_counted  # type: ignore[method-assign]
        return divided

    compared, _divided = run_connected(run, setup, cell, f"({compare}), {RANDOM}", connect_counted, kind, output)
    return {
        "compared": compared,
        "printed": output.getvalue(),
        "notes": run.notes,
        "divided": sum(num_divided),
    }


RANDOM = "(__import__('torch').rand(3), __import__('numpy').random.rand(3).tolist(), __import__('random').random())"
"""What the three streams of random numbers come to next."""
