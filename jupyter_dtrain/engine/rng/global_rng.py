"""Random draws inside models, equal to those of one process on the global batch.

A model on a shard sees only a part of the batch. Every rank therefore draws dropout masks and noise for the global batch, from the cell's
random stream (the notebook's own), and takes its rows. The draws and the stream afterwards are those of one process. The sizes at the
model's first call tell which dim of a draw has the samples. If they are ambiguous, or the draw may have no samples (noise on weights), a
second call with one more sample tells it. The first call is repeated if it has drawn differently.

A model that draws in other ways (see `sampling_ops`) gets the full batch. So does one that reads random states itself, except by activation
checkpointing (`recomputed_draws`).
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, NoReturn

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ...system.patches import patched
from ..identity_map import IdentityMap
from ..tensor.placement_types import Shard
from ..tensor.redistribute import Exchange
from .global_sampling import GlobalSampling, RngChanged, Watching
from .recomputed_draws import RecomputedSampling
from .sample_sites import Drawn, SampleSites, dims_of, guesses
from .streams import ModelStream, TorchState

_SEEDING = ("manual_seed", "seed")
_OF_GPUS = (
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    *(f"{verb}_rng_state{of}" for verb in ("get", "set") for of in ("", "_all")),
)
_NO_LOOK = ("torch.random", "torch.utils.checkpoint", "jupyter_dtrain.")  # who looks as part of what is followed


# -- while a model is called -----------------------------------------------------------------------------------------


class ModelSampling:
    """The draws of each model: learned at its first call, then used for each further call.

    Parameters
    ----------
    stream : ModelStream
    on_apart : callable
        Called when the cell's random streams of the ranks have diverged.
    on_unknown : callable
        Called with the class name of a model whose sample dims cannot be determined.
    """

    def __init__(self, stream: ModelStream, *, on_apart: Callable[[], None], on_unknown: Callable[[str], None]) -> None:
        self._stream, self._on_apart, self._on_unknown = stream, on_apart, on_unknown
        self._known: IdentityMap[dict[bool, SampleSites]] = IdentityMap()  # per model, by `training`
        self._earlier: IdentityMap[dict[bool, SampleSites]] = IdentityMap()  # what has been forgotten of these
        self._current: GlobalSampling | None = None
        self._used = False  # since the ranks' streams were compared
        self._off = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Detect models that read or seed random states, until the end of the ``with`` block."""

        def looked() -> None:
            if self._current is not None:
                self._current.look()

        def told(original: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(original)
            def function(*args: Any, **kwargs: Any) -> Any:
                looked()
                return original(*args, **kwargs)

            return function

        def of_gpus(original: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(original)
            def function(*args: Any, **kwargs: Any) -> Any:
                if not str(sys._getframe(1).f_globals.get("__name__")).startswith(_NO_LOOK):
                    looked()
                return original(*args, **kwargs)

            return function

        def keep() -> Callable[[], GlobalSampling] | None:
            return None if self._current is None or self._current.per_rank else self._current.replay()

        with ExitStack() as stack:
            stack.enter_context(RecomputedSampling(keep, looked).installed())
            for name in _SEEDING:
                stack.enter_context(patched(torch, name, told(getattr(torch, name))))
            for name in _OF_GPUS:
                stack.enter_context(patched(torch.cuda, name, of_gpus(getattr(torch.cuda, name))))
            yield

    def knows(self, module: nn.Module) -> bool:
        """Return whether the draws of a model are known in its current mode (training or evaluation)."""
        return self._off or module.training in (self._known.get(module) or ())

    def sites(self, module: nn.Module) -> SampleSites | None:
        """Return the draws of a model in its current mode, ``None`` if they are unknown or there are none."""
        return (self._known.get(module) or {}).get(module.training) or None

    @property
    def current(self) -> GlobalSampling | None:
        """The mode that draws for the model being called; ``None`` if it draws nothing, or from the rank's stream."""
        return self._current

    def is_per_rank(self, module: nn.Module) -> bool:
        """Return whether a model in its current mode draws from the rank's own stream."""
        return self._off or (self._known.get(module) or {}).get(module.training) is None

    @contextmanager
    def drawing(self, module: nn.Module, placement: Shard) -> Iterator[GlobalSampling | None]:
        """Draw for the global batch what `module` draws, until the end of the ``with`` block.

        The value of the context is the mode that draws, or ``None`` if the model draws nothing or from the rank's stream.

        Raises
        ------
        RngChanged
            At the end, if a model that was known to draw nothing has drawn (a dropout raised from 0, noise after a warm-up), or if it has
            drawn by an operation that is not followed, or one that it had not drawn by. What was learned is forgotten.
        """
        known = self.knows(module)
        sites = None if self._off else (self._known.get(module) or {}).get(module.training)
        if known and not sites:
            then = self._stream.other
            yield None
            # All ranks raise it, as they run the same code.
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
        """Forget a model's draws in its current mode and raise RngChanged, so that its next call is a first call again."""
        sites = (self._known.get(module) or {}).pop(module.training, None)
        if sites is not None:
            (self._earlier.get(module) or self._earlier.set(module, {}))[module.training] = sites
        raise RngChanged

    def learn(
        self,
        module: nn.Module,
        placement: Shard,
        *,
        of_ranks: Sequence[Drawn | None],
        one_more: Callable[[TorchFunctionMode], object],
    ) -> bool:
        """Learn from a model's first call what it draws. A collective if the shapes of the draws are ambiguous.

        Parameters
        ----------
        module : nn.Module
        placement : Shard
            Of the batch that it was called on.
        of_ranks : sequence of Drawn or None
            The draws of each rank. ``None``: the model has read random states, or a draw was not followed.
        one_more : callable
            Calls the model with one more sample, under the mode that it gets.

        Returns
        -------
        bool
            Whether the first call has drawn along the right dims. ``False`` also if the sample dims cannot be determined: nothing is
            learned then, and `is_per_rank` is true.
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
            if dims is None:  # the second call has drawn differently
                dims = guesses(sites, sizes)
        if dims is None:
            self._on_unknown(type(module).__name__)
            return False
        known = self._known.get(module) or self._known.set(module, {})
        known[module.training] = SampleSites(drew[0].sites, dims, (self._earlier.get(module) or {}).get(module.training))
        return all(drawn.dims == dims for drawn in drew)

    def agree(self) -> None:
        """Compare the cell's random stream between ranks; if it has diverged, set rank 0's on all. A collective, if a model has drawn."""
        if not self._used:
            return
        self._used = False
        state = TorchState.now()
        if len(set(Exchange.objects(hashlib.blake2b(state.to_bytes()).digest()))) > 1:
            self._off = True
            self._on_apart()
            Exchange.objects(state)[0].set()

    def state_dict(self) -> list[tuple[nn.Module, dict[bool, SampleSites]]]:
        """Return the learned draws, for a snapshot."""
        return list(self._known.items())

    def load_state_dict(self, state: Iterable[tuple[nn.Module, dict[bool, SampleSites]]]) -> None:
        """Restore what :meth:`state_dict` returned."""
        for module, sites in state:
            self._known.set(module, sites)
