"""The ranks of a run along the axes that a strategy shares the work over.

A record of degrees, without a process group: one rank has a mesh as well, and nothing is made at a cell's start. PyTorch's own DeviceMesh
is made of it when something asks for it; along a single axis it has the ranks' group and makes no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import prod

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


class Mesh:
    """Where a rank is in the mesh of all ranks.

    Parameters
    ----------
    rank : int
    degrees : mapping of str to int
        Ranks along each axis, the outermost first: neighbouring ranks differ in the last one.
    device_type : str

    Raises
    ------
    ValueError
        There is no such rank.
    """

    def __init__(self, rank: int, degrees: Mapping[str, int], *, device_type: str = "cpu") -> None:
        self.rank, self.degrees, self._device_type = rank, dict(degrees), device_type
        if not 0 <= rank < self.size:
            raise ValueError(f"rank {rank} of a mesh of {' × '.join(f'{axis}={degree}' for axis, degree in degrees.items())}")

    @property
    def size(self) -> int:
        """The number of ranks."""
        return prod(self.degrees.values())

    def degree(self, axis: str) -> int:
        """Return the number of ranks along an axis; 1 for one that the mesh does not have."""
        return self.degrees.get(axis, 1)

    def index(self, axis: str, rank: int | None = None) -> int:
        """Return which of the ranks along an axis this one is, or another `rank`."""
        rest = self.rank if rank is None else rank
        for name, degree in reversed(self.degrees.items()):
            rest, index = divmod(rest, degree)
            if name == axis:
                return index
        return 0

    def ranks_along(self, axis: str) -> list[int]:
        """Return the ranks that differ from this one along an axis alone, in its order, and this one among them."""
        others = [name for name in self.degrees if name != axis]
        return [rank for rank in range(self.size) if all(self.index(name, rank) == self.index(name) for name in others)]

    @cached_property
    def device_mesh(self) -> DeviceMesh:
        """PyTorch's own, for what is built on it. A collective where there are several axes, as each has groups of its own then."""
        return init_device_mesh(self._device_type, tuple(self.degrees.values()), mesh_dim_names=tuple(self.degrees))
