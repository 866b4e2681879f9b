"""PyTorch's DeviceMesh of the ranks: along one axis it has their own process group, so it costs nobody another."""

from __future__ import annotations

import torch.distributed as dist

from jupyter_dtrain.engine.comm.mesh import Mesh
from jupyter_dtrain.parallel_dims import DATA_PARALLEL

from .ranks import Run


def made(run: Run) -> tuple[int, int, int, bool]:
    before = dist.distributed_c10d._world.group_count
    mesh = Mesh(run.rank, {DATA_PARALLEL: run.world_size}).device_mesh
    num_groups = dist.distributed_c10d._world.group_count - before
    return mesh.get_local_rank(DATA_PARALLEL), mesh.size(), num_groups, mesh.get_group(DATA_PARALLEL) is dist.group.WORLD


def test_device_mesh_has_the_ranks_own_group(ranks):
    assert ranks.call(2, made) == [(0, 2, 0, True), (1, 2, 0, True)]


def planes(run: Run) -> tuple[dict[str, int], list[int]]:
    mesh = Mesh(run.rank, {"pp": 2, DATA_PARALLEL: 2})
    along = [mesh.device_mesh.get_local_rank(axis) for axis in mesh.degrees]
    return {axis: mesh.index(axis) for axis in mesh.degrees}, along


def test_device_mesh_counts_ranks_along_the_axes_as_the_mesh_does(ranks):
    for indices, along in ranks.call(4, planes):
        assert list(indices.values()) == along
