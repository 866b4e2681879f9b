"""Determine the sample dim of each random draw of a model, from the shapes of the draws on all ranks alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from .sampling_ops import DROPS, Shape


@dataclass(frozen=True)
class Site:
    """A draw of a model: the name of the function, and the shape on this rank."""

    function: str
    shape: Shape


@dataclass(frozen=True)
class Drawn:
    """The draws of a rank in one call of a model.

    Attributes
    ----------
    sites : list of Site
    dims : list of int or None
        Sample dim that the rank has assumed for each draw.
    values : dict of int to torch.Tensor
        Values of small draws without samples, by index.
    """

    sites: list[Site]
    dims: list[int | None]
    values: dict[int, torch.Tensor] = field(default_factory=dict)


class SampleSites:
    """The draws of a model in order, and the sample dim of each; ``None`` for a draw without samples.

    What a model drew in an `earlier` first call, and not in its last, is still known by its kind.
    """

    def __init__(self, sites: Sequence[Site], dims: Sequence[int | None], earlier: SampleSites | None = None) -> None:
        self._sites, self._dims = tuple(sites), tuple(dims)
        self._by_kind: dict[tuple[str, int], set[int | None]] = {}
        if earlier is not None:
            self._by_kind = {kind: set(dims) for kind, dims in earlier._by_kind.items()}
        for site, dim in zip(self._sites, self._dims, strict=True):
            self._by_kind.setdefault((site.function, len(site.shape)), set()).add(dim)

    def __len__(self) -> int:
        return len(self._sites)

    def dim(self, index: int, site: Site) -> int | None:
        """Return the sample dim of `site`, the draw number `index` of a call. KeyError if it is unknown."""
        kind = site.function, len(site.shape)
        dims = self._by_kind[kind]
        if len(dims) == 1:
            return next(iter(dims))
        known = self._sites[index] if index < len(self._sites) else None
        if known is None or (known.function, len(known.shape)) != kind:
            raise KeyError(site)
        return self._dims[index]

    def fits(self, index: int, site: Site, dim: int | None, num_samples: int) -> bool:
        """Return whether `site`, of which `dim` has been returned, is a draw for the rank's samples, or the known one without samples."""
        if dim is not None:
            return site.shape[dim] % num_samples == 0
        return len(self._by_kind[site.function, len(site.shape)]) == 1 or site.shape == self._sites[index].shape


def guess(shape: Shape, num_samples: int) -> int | None:
    """Return the dim whose size suggests the samples: `num_samples`, or for dim 0 a multiple of it. ``None`` if there is none."""
    exact = [dim for dim, size in enumerate(shape) if size == num_samples]
    if exact:
        return exact[0]
    return 0 if shape and num_samples > 1 and shape[0] % num_samples == 0 else None


def dims_of(sites: Sequence[Sequence[Site]], more: Sequence[Sequence[Site]] | None, sizes: Sequence[int]) -> list[int | None] | None:
    """Return the sample dim of each draw, ``None`` in place of the list if one is ambiguous.

    Parameters
    ----------
    sites : sequence of sequence of Site
        The draws of each rank.
    more : sequence of sequence of Site, optional
        The draws of each rank in a call with one more sample. ``None``: use `sites` alone.
    sizes : sequence of int
        Samples of each rank.
    """
    if any([site.function for site in of_rank] != [site.function for site in sites[0]] for of_rank in (*sites, *(more or ()))):
        return None
    dims: list[int | None] = []
    for index, site in enumerate(sites[0]):
        shapes = [of_rank[index].shape for of_rank in sites]
        found: list[int | None] = list(_scaling(shapes, sizes))
        if all(shape == shapes[0] for shape in shapes):
            found.append(None)
        if more is not None:
            wider = [of_rank[index].shape for of_rank in more]
            found = [dim for dim in found if _grows(shapes, wider, sizes, dim)]
        elif site.function in DROPS:  # dropout is rarely applied to weights
            found = [dim for dim in found if dim is not None and site.shape[dim] == sizes[0]] or found
        if len(found) != 1:
            return None
        dims.append(found[0])
    return dims


def guesses(sites: Sequence[Sequence[Site]], sizes: Sequence[int]) -> list[int | None] | None:
    """Return the most likely sample dim of each draw by sizes; ``None`` in place of the list if the ranks' draws do not correspond."""
    if any([site.function for site in of_rank] != [site.function for site in sites[0]] for of_rank in sites):
        return None
    dims: list[int | None] = []
    for index, site in enumerate(sites[0]):
        shapes = [of_rank[index].shape for of_rank in sites]
        found = sorted(_scaling(shapes, sizes), key=lambda dim: site.shape[dim] != sizes[0])
        if not found and any(shape != shapes[0] for shape in shapes):
            return None
        dims.append(found[0] if found else None)
    return dims


def _scaling(shapes: Sequence[Shape], sizes: Sequence[int]) -> Iterator[int]:
    """Yield the dims whose sizes are the same multiple of each rank's samples, if all other dims are equal on all ranks."""
    for dim in range(min(map(len, shapes))):
        rest = {(*shape[:dim], *shape[dim + 1 :]) for shape in shapes}
        units = {divmod(shape[dim], size) for shape, size in zip(shapes, sizes, strict=True)}
        if len(rest) == 1 and len(units) == 1 and next(iter(units))[1] == 0:
            yield dim


def _grows(shapes: Sequence[Shape], wider: Sequence[Shape], sizes: Sequence[int], dim: int | None) -> bool:
    for shape, wide, size in zip(shapes, wider, sizes, strict=True):
        if wide != tuple(length + length // size if number == dim else length for number, length in enumerate(shape)):
            return False
    return True
