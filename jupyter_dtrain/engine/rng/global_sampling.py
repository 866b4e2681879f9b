"""Function modes that record a model's random draws, and draw for the global batch while the model sees a shard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..tensor.function_bodies import BODIES
from ..tensor.model_io import NeedsFullBatch
from .sample_sites import Drawn, SampleSites, Site, guess
from .sampling_ops import DROPS, Kind, Rows, Shape, draws_by_value, kind_of
from .streams import ModelStream, TorchState

_FEW = 64  # a model may branch on a draw of at most this many entries: its value is recorded


class Watching(TorchFunctionMode):
    """Function mode that records the draws of a model.

    Parameters
    ----------
    again : Drawn, optional
        An earlier call's draws. Small draws without samples get the same values again.

    Attributes
    ----------
    drawn : list of Site
    shuffles : bool
        Whether the model drew a permutation, which may be one of samples, or by an operation whose use of the stream depends on values.
    """

    def __init__(self, again: Drawn | None = None) -> None:
        super().__init__()
        self.drawn: list[Site] = []
        self.shuffles = False
        self._again = again

    def __torch_function__(self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Run `func` and record it if it draws."""
        kwargs = kwargs or {}
        if func in BODIES:
            with self:
                return BODIES[func](*args, **kwargs)
        self.shuffles |= draws_by_value(func, args, kwargs)
        kind = kind_of(func, args) if torch._C._functorch.maybe_current_level() is None else None
        shape = None if kind is None else kind.shape(args, kwargs)
        if kind is None or shape is None:
            return func(*args, **kwargs)
        return self.draw(kind, Site(func.__name__, shape), func, args, kwargs)

    def draw(self, _kind: Kind, site: Site, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `func`, which draws, and record it as `site`."""
        number, again = len(self.drawn), self._again
        self.drawn.append(site)
        result = func(*args, **kwargs)
        if again is not None and number in again.values and again.sites[number] == site:
            with torch.no_grad():
                result.copy_(again.values[number])
        return result


class GlobalSampling(Watching):
    """Function mode that draws for the global batch while a model is called on a shard.

    PyTorch's generators have the rank's stream; for each draw they are switched to the cell's.

    Parameters
    ----------
    loaded : slice
        The samples of the batch that the model is called on.
    total : int
        Samples of the global batch.
    stream : ModelStream
        Switches between the rank's and the cell's stream.
    sites : SampleSites, optional
        The known draws of the model. ``None``: sample dims are guessed from shapes.

    Attributes
    ----------
    dims : list of int or None
        Sample dim of each draw, ``None`` for a draw without samples.
    per_rank : bool
        Whether further draws come from the rank's stream, because the model has read random states, or a shape does not fit the samples.
    looked : bool
        Whether the model has read random states, or makes a draw that its first call did not make.
    is_other : bool
        Whether a draw does not fit the one that is known in its place. Other ranks may not notice it.
    """

    def __init__(self, loaded: slice, total: int, stream: ModelStream, sites: SampleSites | None) -> None:
        super().__init__()
        self._loaded, self._total, self._stream, self._sites = loaded, total, stream, sites
        self._num_samples = loaded.stop - loaded.start
        self.dims: list[int | None] = []
        self.per_rank = self.looked = self.is_other = False
        self._values: dict[int, torch.Tensor] = {}
        self._then = stream.other

    @property
    def result(self) -> Drawn | None:
        """The draws, after the model's call; ``None`` if some were not made for the global batch."""
        return None if self.per_rank or self.has_drawn_apart() else Drawn(self.drawn, self.dims, self._values)

    def has_drawn_apart(self) -> bool:
        """Return whether the model has read random states, or has drawn from the rank's stream: what is not followed, or is not known."""
        return self.looked or (not self.per_rank and not self._stream.other.is_same(self._then))

    def look(self) -> None:
        """Record that the model reads or seeds random states, or makes a draw that its first call did not make."""
        self.per_rank = self.looked = True

    def draw(self, kind: Kind, site: Site, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Draw for the global batch and return the rank's rows; a draw without samples is made once, equal on all ranks."""
        dim = None if self.per_rank else self._dim(site)
        if self.per_rank:
            return func(*args, **kwargs)
        self.drawn.append(site)
        self.dims.append(dim)
        self._stream.switch()
        try:
            if dim is not None:
                return kind.draw(func, args, kwargs, self._rows(dim, site.shape))
            drawn = func(*args, **kwargs)
            if self._sites is None and site.function not in DROPS and drawn.numel() <= _FEW:
                self._values[len(self.drawn) - 1] = drawn.detach().clone()
            return drawn
        finally:
            self._stream.switch()

    def go_on_as(self, loaded: slice, drawn: Sequence[Site], dims: Sequence[int | None]) -> None:
        """Continue as a rank with the samples `loaded` would after the draws `drawn`, whose sample dims are `dims`."""
        self._loaded, self._num_samples = loaded, loaded.stop - loaded.start
        self.drawn, self.dims = list(drawn), list(dims)

    def replay(self) -> Callable[[], GlobalSampling]:
        """Return a factory of modes that draw from the current state on as this one does."""
        cell, drawn, dims = self._stream.other, list(self.drawn), list(self.dims)

        def made() -> GlobalSampling:
            other = GlobalSampling(self._loaded, self._total, _Replayed(cell), self._sites)
            other.drawn, other.dims = list(drawn), list(dims)
            return other

        return made

    def _dim(self, site: Site) -> int | None:
        if self._sites is None:
            return guess(site.shape, self._num_samples)
        try:
            dim = self._sites.dim(len(self.drawn), site)
        except KeyError:  # a draw that the first call did not make, on any rank
            self.look()
            return None
        self.is_other = self.per_rank = not self._sites.fits(len(self.drawn), site, dim, self._num_samples)
        return dim

    def _rows(self, dim: int, shape: Shape) -> Rows:
        unit, loaded = shape[dim] // self._num_samples, self._loaded
        return Rows(dim, slice(loaded.start * unit, loaded.stop * unit), self._total * unit)


class _Replayed(ModelStream):
    """A `ModelStream` whose other stream is a recorded state of the cell's."""

    def __init__(self, cell: TorchState) -> None:
        self.other = cell


class RngChanged(NeedsFullBatch):
    """A model has drawn that had not drawn in its first call.

    Detected by the state of the rank's stream after a call. That takes 2 us and sees all draws; a function mode would cost more.
    """
