"""What a model draws at random, drawn as one process would draw it for the whole batch.

A model on a share sees a part of the batch. Its dropout masks and its noise are drawn for the whole batch, by every rank, from the
stream of the cell, which is the notebook's own; each rank takes its rows. So the draws, and the stream afterwards, are those of one
process. Which dim of a draw has the rows is told by its size at the model's first call; where two dims could be meant, or the draw could as
well be one of the model's own (noise on weights), by a call with one sample more, after which that first call is made again.

What is drawn in other ways (`draws` says which) comes from the rank's stream, as does everything in a model that looks at random states
itself; activation checkpointing alone may (`drawn_again`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ...system.patches import patched
from ..module_tree import IdentityMap
from ..tensor.function_bodies import BODIES
from ..tensor.placement_types import Shard
from ..tensor.redistribute import Exchange
from ..tensor.view import NeedsFullBatch
from .recomputed_draws import RecomputedSampling
from .sample_sites import Drawn, SampleSites, Site, dims_of, guess, guesses
from .sampling_ops import BY_VALUE, DROPS, Kind, Rows, Shape, kind_of
from .streams import ModelStream, TorchState

_FEW = 64  # entries of a draw that a model may look at to decide what it does
_SEEDING = ("manual_seed", "seed")


# -- while a model is called -----------------------------------------------------------------------------------------


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
        self.shuffles |= func in BY_VALUE
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
        Whether something in the model looked at random states: what it draws from then on is the rank's own.
    """

    def __init__(self, loaded: slice, total: int, stream: ModelStream, sites: SampleSites | None) -> None:
        super().__init__()
        self._loaded, self._total, self._stream, self._sites = loaded, total, stream, sites
        self._num_samples = loaded.stop - loaded.start
        self.dims: list[int | None] = []
        self.per_rank = False
        self._values: dict[int, torch.Tensor] = {}
        self._then = stream.other

    @property
    def result(self) -> Drawn | None:
        """What was drawn for the whole batch, after the model's call; ``None`` where not all can be."""
        only_unseen = not self.drawn and not self._stream.other.is_same(self._then)
        return None if self.per_rank or only_unseen else Drawn(self.drawn, self.dims, self._values)

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


class ModelSampling:
    """What is known of the draws of each model.

    Parameters
    ----------
    stream : ModelStream
    on_apart : callable
        Told that ranks have drawn differently.
    """

    def __init__(self, stream: ModelStream, *, on_apart: Callable[[], None]) -> None:
        self._stream, self._on_apart = stream, on_apart
        self._known: IdentityMap[dict[bool, SampleSites | None]] = IdentityMap()  # per model, in training and in evaluation
        self._current: GlobalSampling | None = None
        self._used = False  # since the ranks' streams were compared
        self._off = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Notice models that look at random states, until the end of the ``with`` block."""

        def looked() -> None:
            if self._current is not None:
                self._current.per_rank = True

        def told(original: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(original)
            def function(*args: Any, **kwargs: Any) -> Any:
                looked()
                return original(*args, **kwargs)

            return function

        def keep() -> Callable[[], GlobalSampling] | None:
            return None if self._current is None or self._current.per_rank else self._current.replay()

        with ExitStack() as stack:
            stack.enter_context(RecomputedSampling(keep, looked).installed())
            for name in _SEEDING:
                stack.enter_context(patched(torch, name, told(getattr(torch, name))))
            yield

    def knows(self, module: nn.Module) -> bool:
        """Return whether the draws of a model are known, in the mode (training or evaluation) that it is in."""
        return self._off or module.training in (self._known.get(module) or ())

    def sites(self, module: nn.Module) -> SampleSites | None:
        """Return the draws of a model in the mode that it is in; ``None`` where they are not known, or there are none."""
        return (self._known.get(module) or {}).get(module.training) or None

    @property
    def current(self) -> GlobalSampling | None:
        """What draws for the model that is being called; ``None``: it draws nothing, or from the rank's stream."""
        return self._current

    def is_per_rank(self, module: nn.Module) -> bool:
        """Return whether what a model draws, in the mode that it is in, is the rank's own."""
        return self._off or (self._known.get(module) or {}).get(module.training) is None

    @contextmanager
    def drawing(self, module: nn.Module, placement: Shard) -> Iterator[GlobalSampling | None]:
        """Let what `module` draws until the end of the ``with`` block be drawn for the whole batch; ``None``: it is the rank's own.

        Raises
        ------
        DrawsNow
            It draws, and was known not to: a dropout of 0 that has become more, noise after a warm-up. What it draws is to be learned.
        """
        known = self.knows(module)
        sites = None if self._off else (self._known.get(module) or {}).get(module.training)
        if known and not sites:
            then = self._stream.other
            yield None
            # All ranks come to this: they run the same code.
            if sites is not None and not self._stream.other.is_same(then):
                (self._known.get(module) or {}).pop(module.training, None)
                raise RngChanged
            return
        self._used = True
        self._current = GlobalSampling(placement.share.loaded, placement.share.total, self._stream, sites)
        try:
            with self._current as drawing:
                yield drawing
        finally:
            self._current = None

    def learn(
        self,
        module: nn.Module,
        placement: Shard,
        *,
        of_ranks: Sequence[Drawn | None],
        one_more: Callable[[TorchFunctionMode], object],
    ) -> bool:
        """Learn from a model's first call what it draws; return whether that call has drawn right. A collective.

        Parameters
        ----------
        of_ranks : sequence of Drawn
            What each rank has drawn; ``None`` where something in the model looked at random states.
        one_more : callable
            Calls the model with one sample more, under a mode.
        """
        dims: list[int | None] | None = None
        drew = [of_rank for of_rank in of_ranks if of_rank is not None]
        if len(drew) == len(of_ranks):
            sites = [drawn.sites for drawn in drew]
            sizes = [max(size, 1) for size in placement.share.sizes]
            dims = dims_of(sites, None, sizes)
            if dims is None:
                watching = Watching(drew[0])
                one_more(watching)
                dims = dims_of(sites, Exchange.objects(watching.drawn), sizes)
            if dims is None:  # it came by other draws
                dims = guesses(sites, sizes)
        known = self._known.get(module) or self._known.set(module, {})
        known[module.training] = SampleSites(drew[0].sites, dims) if dims is not None else None
        return dims is not None and all(drawn.dims == dims for drawn in drew)

    def agree(self) -> None:
        """Go on from one state of the cell's stream, whatever models have drawn. A collective."""
        if not self._used:
            return
        self._used = False
        state = TorchState.now()
        if len(set(Exchange.objects(hashlib.blake2b(state.to_bytes()).digest()))) > 1:
            self._off = True
            self._on_apart()
            Exchange.objects(state)[0].set()

    def state_dict(self) -> list[tuple[nn.Module, dict[bool, SampleSites | None]]]:
        """Return what a run that goes on from here has to know."""
        return list(self._known.items())

    def load_state_dict(self, state: Iterable[tuple[nn.Module, dict[bool, SampleSites | None]]]) -> None:
        """Go on from what :meth:`state` returned."""
        for module, sites in state:
            self._known.set(module, sites)
