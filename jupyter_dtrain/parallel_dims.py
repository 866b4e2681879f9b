"""The degrees of ``--mesh``: the number of engines along each axis of the device mesh, and the strategy that shards a model along one.

As in a PyTorch DeviceMesh, axes have names: ``dp`` for groups of engines that each hold the full model, and a strategy's axis for the
engines within a group. Degrees are validated only here, and an error shows all of them. Consecutive ranks are in the same group, in
whichever order the axes are given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from .errors import UsageError
from .strategies import DEFAULT, Feature, StrategyInfo, available, find

DATA_PARALLEL = "dp"
"""The axis of groups of engines that each hold the full model."""


@dataclass(frozen=True)
class ParallelDims:
    """The parsed option ``--mesh``.

    Attributes
    ----------
    degrees : tuple of (str, int)
        Number of engines along each axis, the outermost first; axes with one engine are omitted.
    """

    degrees: tuple[tuple[str, int], ...]

    @classmethod
    def parse(cls, text: str) -> ParallelDims:
        """Return the dimensions for a text such as ``dp=2,pp=2``.

        Raises
        ------
        UsageError
            The text is malformed, or names unknown or repeated axes, or axes that cannot be combined.
        """
        axes = {info.axis: info.name for info in available() if info.axis not in (None, DATA_PARALLEL)}
        by_name = {name: axis for axis, name in axes.items()} | {"dp_replicate": DATA_PARALLEL}
        known = f"{DATA_PARALLEL} or {' or '.join(f'{axis} (--strategy {name})' for axis, name in axes.items())}"
        found: dict[str, int] = {}
        for part in text.split(","):
            one = re.fullmatch(r"\s*([^\W\d]\w*)\s*=\s*([1-9]\d*)\s*", part)
            if one is None:
                raise UsageError(f"--mesh {text}: give axes with as many engines as lie along each, such as --mesh dp=2,pp=2.")
            axis = by_name.get(one[1], one[1])
            if axis not in (DATA_PARALLEL, *axes):
                raise UsageError(f"--mesh {text}: there is no axis {axis}; choose {known}.")
            if axis in found:
                raise UsageError(f"--mesh {text}: the axis {axis} is there twice; give the engines along each axis once.")
            found[axis] = int(one[2])
        inner = [axis for axis, degree in found.items() if axis != DATA_PARALLEL and degree > 1]
        if len(inner) > 1:
            raise UsageError(f"--mesh {text}: {' and '.join(inner)} cannot be combined; give one of them beside {DATA_PARALLEL}.")
        outer = found.get(DATA_PARALLEL, 1)
        return cls(tuple((axis, degree) for axis, degree in [(DATA_PARALLEL, outer), *((one, found[one]) for one in inner)] if degree > 1))

    def __str__(self) -> str:
        return ",".join(f"{axis}={degree}" for axis, degree in self.degrees) or f"{DATA_PARALLEL}=1"

    @property
    def num_engines(self) -> int:
        """Number of engines: the product of the degrees."""
        return prod(degree for _, degree in self.degrees)

    def strategy_of(self, name: str) -> str:
        """Return the strategy to use if ``--strategy`` is `name`.

        Raises
        ------
        UsageError
            `name` is another strategy, or the strategy does not support these axes.
        """
        inner = [axis for axis, _ in self.degrees if axis != DATA_PARALLEL]
        info = next((info for info in available() if inner and info.axis == inner[0]), find(name))
        given = find(name)
        if name not in (DEFAULT, info.name) or (not inner and given.axis != DATA_PARALLEL):
            has = "of no mesh" if given.axis is None else f"along the axis {given.axis}"
            raise UsageError(f"--mesh {self} and --strategy {name}, which shares the work {has}: leave out one of the two.")
        if len(self.degrees) > 1:
            info.require(Feature.HYBRID, f"--mesh {self}", advice=f": take --mesh {inner[0]}={self.num_engines}")
        return info.name

    def engines_of(self, given: int | None) -> int:
        """Return the number of engines; `given` is the requested number, if any.

        Raises
        ------
        UsageError
            `given` is another number.
        """
        if given not in (None, self.num_engines):
            sizes = " × ".join(f"{axis}={degree}" for axis, degree in self.degrees) or str(self)
            is_of = f"--mesh {self} is {sizes} = {self.num_engines} engines"
            raise UsageError(f"{is_of}, and there are to be {given}: give degrees whose product is {given}.")
        return self.num_engines


def degrees_of(info: StrategyInfo, mesh: ParallelDims | None, world_size: int) -> Mapping[str, int]:
    """Return the number of ranks along each axis: those of `mesh` if it has `world_size` ranks, else all along the strategy's axis."""
    if mesh is not None and mesh.num_engines == world_size:
        return dict(mesh.degrees) or {DATA_PARALLEL: 1}
    return {info.axis or DATA_PARALLEL: world_size}
