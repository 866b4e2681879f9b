"""What a model draws at random, drawn as one process would draw it for the whole batch.

A model on a share sees a part of the batch. Its dropout masks and its noise are drawn for the whole batch, by every rank, from the
stream of the cell, which is the notebook's own; each rank takes its rows. So the draws, and the stream afterwards, are those of one
process. Which dim of a draw has the rows is told by its size at the model's first call; where two dims could be meant, or the draw could as
well be one of the model's own (noise on weights), by a call with one sample more, after which that first call is made again.

A model that draws in other ways (`sampling_ops` says which) is given the whole batch, as is one that looks at random states
itself; activation checkpointing alone may (`recomputed_draws`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, NoReturn

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ...system.patches import patched
from ..module_tree import IdentityMap
from ..tensor.placement_types import Shard
from ..tensor.redistribute import Exchange
from .global_sampling import GlobalSampling, RngChanged, Watching
from .recomputed_draws import RecomputedSampling
from .sample_sites import Drawn, SampleSites, dims_of, guesses
from .streams import ModelStream, TorchState

_SEEDING = ("manual_seed", "seed")


# -- while a model is called -----------------------------------------------------------------------------------------


class ModelSampling:
    """What is known of the draws of each model.

    Parameters
    ----------
    stream : ModelStream
    on_apart : callable
        Told that ranks have drawn differently.
    on_unknown : callable
        Told the class of a model of whose draws it cannot be told which are for which samples.
    """

    def __init__(self, stream: ModelStream, *, on_apart: Callable[[], None], on_unknown: Callable[[str], None]) -> None:
        self._stream, self._on_apart, self._on_unknown = stream, on_apart, on_unknown
        self._known: IdentityMap[dict[bool, SampleSites]] = IdentityMap()  # per model, in training and in evaluation
        self._current: GlobalSampling | None = None
        self._used = False  # since the ranks' streams were compared
        self._off = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Notice models that look at random states, until the end of the ``with`` block."""

        def looked() -> None:
            if self._current is not None:
                self._current.look()

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
        RngChanged
            It draws, and was known not to (a dropout of 0 that has become more, noise after a warm-up), or it draws what is not followed.
            What it draws is to be learned.
        """
        known = self.knows(module)
        sites = None if self._off else (self._known.get(module) or {}).get(module.training)
        if known and not sites:
            then = self._stream.other
            yield None
            # All ranks come to this: they run the same code.
            if sites is not None and not self._stream.other.is_same(then):
                self._forget(module)
            return
        self._used = True
        self._current = GlobalSampling(placement.share.loaded, placement.share.total, self._stream, sites)
        try:
            with self._current as drawing:
                yield drawing
        finally:
            self._current = None
        if known and drawing.has_drawn_apart():
            self._forget(module)

    def _forget(self, module: nn.Module) -> NoReturn:
        """Forget what is known of a model's draws in the mode that it is in, and have it called for a first time again."""
        (self._known.get(module) or {}).pop(module.training, None)
        raise RngChanged

    def learn(
        self,
        module: nn.Module,
        placement: Shard,
        *,
        of_ranks: Sequence[Drawn | None],
        one_more: Callable[[TorchFunctionMode], object],
    ) -> bool:
        """Learn from a model's first call what it draws; return whether that call has drawn right. A collective.

        Where it cannot be told what is whose (`is_per_rank` afterwards), nothing is learned.

        Parameters
        ----------
        of_ranks : sequence of Drawn
            What each rank has drawn; ``None`` where something in the model looked at random states, or not all that it drew was followed.
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
        if dims is None:
            self._on_unknown(type(module).__name__)
            return False
        known = self._known.get(module) or self._known.set(module, {})
        known[module.training] = SampleSites(drew[0].sites, dims)
        return all(drawn.dims == dims for drawn in drew)

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

    def state_dict(self) -> list[tuple[nn.Module, dict[bool, SampleSites]]]:
        """Return what a run that goes on from here has to know."""
        return list(self._known.items())

    def load_state_dict(self, state: Iterable[tuple[nn.Module, dict[bool, SampleSites]]]) -> None:
        """Go on from what :meth:`state` returned."""
        for module, sites in state:
            self._known.set(module, sites)
