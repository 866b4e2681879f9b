"""What is drawn for the whole batch, of which the rank takes its rows."""

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

_FEW = 64  # entries of a draw that a model may look at to decide what it does


class Watching(TorchFunctionMode):
    """Notes the draws of a model.

    Parameters
    ----------
    again : Drawn, optional
        What the model has drawn before: values without samples are those.

    Attributes
    ----------
    drawn : list of Site
    shuffles : bool
        Whether it drew an order, of samples perhaps, or what takes as many numbers from the stream as the samples say.
    """

    def __init__(self, again: Drawn | None = None) -> None:
        super().__init__()
        self.drawn: list[Site] = []
        self.shuffles = False
        self._again = again

    def __torch_function__(self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Run `func`, noting what it draws."""
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
        """Run `func`, which draws."""
        number, again = len(self.drawn), self._again
        self.drawn.append(site)
        result = func(*args, **kwargs)
        if again is not None and number in again.values and again.sites[number] == site:
            with torch.no_grad():
                result.copy_(again.values[number])
        return result


class GlobalSampling(Watching):
    """Draws for the whole batch while a model is called on the rank's part; between draws the rank's stream is in use.

    Parameters
    ----------
    loaded : slice
        The samples of the batch that the model is called on.
    total : int
        How many samples the batch has.
    stream : ModelStream
        Exchanges the rank's stream for the cell's, for a draw.
    sites : SampleSites, optional
        What is known of the model's draws; ``None``: they are guessed.

    Attributes
    ----------
    dims : list of int or None
        Along which dim each draw had the samples.
    per_rank : bool
        Whether what the model draws from then on is the rank's own: something looked at random states, or a shape does not tell whose
        rows are whose.
    looked : bool
        Whether something in the model looked at random states.
    """

    def __init__(self, loaded: slice, total: int, stream: ModelStream, sites: SampleSites | None) -> None:
        super().__init__()
        self._loaded, self._total, self._stream, self._sites = loaded, total, stream, sites
        self._num_samples = loaded.stop - loaded.start
        self.dims: list[int | None] = []
        self.per_rank = self.looked = False
        self._values: dict[int, torch.Tensor] = {}
        self._then = stream.other

    @property
    def result(self) -> Drawn | None:
        """What was drawn for the whole batch, after the model's call; ``None`` where not all was."""
        return None if self.per_rank or self.has_drawn_apart() else Drawn(self.drawn, self.dims, self._values)

    def has_drawn_apart(self) -> bool:
        """Return whether the model's call has looked at random states, or has drawn what is not followed, from the rank's stream."""
        return self.looked or (not self.per_rank and not self._stream.other.is_same(self._then))

    def look(self) -> None:
        """Note that something in the model looks at random states."""
        self.per_rank = self.looked = True

    def draw(self, kind: Kind, site: Site, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Draw for the whole batch, and return the rank's part."""
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
        """Go on as a rank whose samples are `loaded` does, after `drawn` along `dims`."""
        self._loaded, self._num_samples = loaded, loaded.stop - loaded.start
        self.drawn, self.dims = list(drawn), list(dims)

    def replay(self) -> Callable[[], GlobalSampling]:
        """Return what makes a mode that goes on as this one does from now on."""
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
        except KeyError:  # the first call did not come by here
            return guess(site.shape, self._num_samples)
        self.per_rank = dim is not None and site.shape[dim] % self._num_samples > 0
        return dim

    def _rows(self, dim: int, shape: Shape) -> Rows:
        unit, loaded = shape[dim] // self._num_samples, self._loaded
        return Rows(dim, slice(loaded.start * unit, loaded.stop * unit), self._total * unit)


class _Replayed(ModelStream):
    """The cell's stream as it was once, beside the one in use."""

    def __init__(self, cell: TorchState) -> None:
        self.other = cell


class RngChanged(NeedsFullBatch):
    """A model has drawn that had not drawn in its first call.

    Found by where the rank's stream is after a call, which takes 2 us and sees all draws; to watch each operation would take longer.
    """
