"""A run's ranks as a mesh, along the axes that a strategy shares the work over.

A record of degrees without process groups: it also exists for one rank, and costs nothing at a cell's start. PyTorch's DeviceMesh is
created on first use; along a single axis it uses the ranks' existing group.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import prod

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


class Mesh:
    """Position of a rank in the mesh of all ranks.

    Parameters
    ----------
    rank : int
    degrees : mapping of str to int
        Number of ranks along each axis, outermost first: consecutive ranks differ in the last axis.
    device_type : str

    Raises
    ------
    ValueError
        `rank` is not in the mesh.
    """

    def __init__(self, rank: int, degrees: Mapping[str, int], *, device_type: str = "cpu") -> None:
        self.rank, self.degrees, self._device_type = rank, dict(degrees), device_type
        if not 0 <= rank < self.size:
            raise ValueError(f"rank {rank} of a mesh of {' × '.join(f'{axis}={degree}' for axis, degree in degrees.items())}")

    @property
    def size(self) -> int:
        """Number of ranks in the mesh."""
        return prod(self.degrees.values())

    def degree(self, axis: str) -> int:
        """Return the number of ranks along an axis; 1 if the mesh has no such axis."""
        return self.degrees.get(axis, 1)

    def index(self, axis: str, rank: int | None = None) -> int:
        """Return the position along an axis of `rank`, by default of this rank."""
        rest = self.rank if rank is None else rank
        for name, degree in reversed(self.degrees.items()):
            rest, index = divmod(rest, degree)
            if name == axis:
                return index
        return 0

    def ranks_along(self, axis: str) -> list[int]:
        """Return the ranks that differ from this one in `axis` only, in its order, including this one."""
        others = [name for name in self.degrees if name != axis]
        return [rank for rank in range(self.size) if all(self.index(name, rank) == self.index(name) for name in others)]

    @cached_property
    def device_mesh(self) -> DeviceMesh:
        """PyTorch's DeviceMesh. A collective if there are several axes, since each then has its own groups."""
        return init_device_mesh(self._device_type, tuple(self.degrees.values()), mesh_dim_names=tuple(self.degrees))
