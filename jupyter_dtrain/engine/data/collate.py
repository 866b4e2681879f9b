"""Batches of a collate function of the user's: where the samples are in them, and whether a rank may load its own alone.

What such a function makes of a part of the samples need not be a part of what it makes of all: it pads to the longest, mixes
samples, draws random numbers. So for the first batch both are made and compared. Where the part is exactly that, and the function's
code has no word of anything else (`mixing`), ranks load and collate their own samples from then on, and check for every batch that
they have padded alike. Otherwise every rank collates the whole batch, as one process would, and keeps its part; and where even that
cannot be cut (texts joined end to end), every rank computes on all of it. A function may also fail for a part of the samples (it
arranges them by classes and shots, or wants pairs): a part that it refuses is no error, and decides as one that is no part of the whole.
"""

from __future__ import annotations

import copy
import dis
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from types import CodeType
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory

from ...analysis.code_objects import everything
from ...capture.bundle import RandomState
from ..code_inspection import call_uses
from ..rng.streams import OtherStreams, generators_in, set_state, state_of
from ..tensor.batch_shard import BatchShard
from .batch_layout import Layout, Path, UnknownBatch, compared, cut, kinds_of, length_of
from .counters import Counters, keeper_of
from .fetch_state import FetchState

# Whether what a collate function makes of a sample may depend on the others of the batch, told from the words in its code.
#
# What it made of one batch says little of the next: a batch without an outlier is not scaled, one of equal lengths comes in order. So
# only a function without a word for a statistic, for an order or for random numbers is given a rank's own samples alone. A word too
# many costs time and no more: each rank then collates whole batches. Padding needs no word, for it is seen in each batch's shapes.

_STATISTICS = (
    "all allclose amax amin aminmax any argmax argmin average bincount Counter cumprod cumsum equal fromkeys fsum histc histogram isin "
    "kthvalue logsumexp max maximum mean median min minimum mode nanmean nanmedian nansum norm percentile prod quantile reduce softmax "
    "std std_mean sum unique unique_consecutive var var_mean"
)
_ORDERS = "argpartition argsort flip fliplr flipud frozenset groupby lexsort nlargest nsmallest reverse reversed roll set sort sorted topk"
_DRAWS = (
    "bernoulli bernoulli_ beta choice choices dirichlet dropout exponential_ gauss geometric integers multinomial normal normal_ "
    "permutation permuted poisson rand rand_like randint randint_like randn randn_like random random_ random_sample randperm randrange "
    "sample shuffle standard_normal triangular uniform uniform_"
)
_WORDS_OF_DRAWS = frozenset(_DRAWS.split())
_WORDS = _WORDS_OF_DRAWS.union(_STATISTICS.split(), _ORDERS.split())
_OF_SETS = frozenset(("BUILD_SET", "SET_ADD", "SET_UPDATE"))


def may_mix(collate: object) -> bool:
    """Return whether the code of a collate function has a word of something that depends on several samples."""
    return call_uses(collate, lambda code, names: not _WORDS.isdisjoint(names) or _makes_sets(code))


def may_draw(collate: object) -> bool:
    """Return whether the code of a collate function has a word of random numbers."""
    return call_uses(collate, lambda _, names: not _WORDS_OF_DRAWS.isdisjoint(names))


def _makes_sets(code: CodeType) -> bool:
    return any(step.opname in _OF_SETS for part in everything(code) for step in dis.get_instructions(part))


Agree = Callable[[Any], list[Any]]
Found = dict[Path, tuple[list[int | str], bool]] | None
"""What a rank's part of a batch is of the whole; ``None``: not just a part."""


class Refused:
    """In the place of a batch: the collate function has failed for the rank's samples alone."""


def collated_if_possible(collate: Callable[[Any], Any], samples: Any) -> Any:
    """Return what the user's function makes, or `Refused` where it fails: whether that is an error, all samples of the batch say."""
    try:
        return collate(samples)
    except Exception:  # the whole batch shows it again, if it is one
        return Refused()


@dataclass
class Probed:
    """A whole batch, and what a part of its samples is of it."""

    batch: Any
    found: Found

    def pin_memory(self) -> Probed:
        """Pin the batch, as a loader does."""
        return Probed(pin_memory(self.batch), self.found)


class Probe:
    """Collates whole batches, and of the first one the rank's part as well, which leaves no trace: what it changes is put back.

    For what remembers the samples that it was given: the batch cannot be loaded another time to learn from it.
    """

    def __init__(self, collate: Callable[[Any], Any], share: Callable[[int], BatchShard]) -> None:
        self._collate, self._share, self._done = collate, share, False

    def __call__(self, samples: Any) -> Any:
        """Return the whole batch, as `Probed` the first time."""
        if self._done:
            return self._collate(samples)
        self._done = True
        share = self._share(len(samples))
        part = self._part(samples, share) if share.loaded.stop - share.loaded.start < share.total else Refused()
        whole = self._collate(samples)
        return Probed(whole, compared(whole, part, share.total, share.loaded))

    def _part(self, samples: Any, share: BatchShard) -> Any:
        state, random_state, streams = FetchState(self._collate), RandomState.now(), OtherStreams.now(self._collate)
        try:
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
                return collated_if_possible(self._collate, copy.deepcopy(samples[share.loaded]))
        except Exception:  # of what cannot be copied
            return Refused()
        finally:
            state.restore()
            random_state.set()
            streams.set()


class CutAfterLoading(Exception):
    """Batches of this loader have to be collated whole."""


class Collation:
    """What is known of one loader's batches.

    Parameters
    ----------
    loader : DataLoader
    share : callable
        Returns the rank's share of a batch of a given size.
    agree : callable
        Returns all ranks' values of what is given. A collective.
    whole_draws : bool
        Whether each rank is to collate all of a batch where samples are loaded or collated with random numbers.
    on_unknown : callable
        Told of a later batch, in words, that cannot be split though the first one could.

    Attributes
    ----------
    is_whole : bool
        Each rank collates all of a batch.
    draws : bool
        It does so because random numbers are drawn.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        share: Callable[[int], BatchShard],
        agree: Agree,
        *,
        whole_draws: bool,
        on_unknown: Callable[[str], None],
    ) -> None:
        self._dataset, self._collate = loader.dataset, loader.collate_fn
        self._generators = generators_in((loader.dataset, loader.collate_fn))
        self._share, self._agree, self._whole_draws, self._on_unknown = share, agree, whole_draws, on_unknown
        self._probe: Probe | None = None
        self._layout: Layout | None = None
        self._may_mix, self._may_draw = may_mix(loader.collate_fn), may_draw(loader.collate_fn)
        self.is_whole = self.draws = False

    def local_shard(self, batch: Any, share: BatchShard, indices: Sequence[Any]) -> tuple[Any, BatchShard | None, Layout | None]:
        """Return the rank's part of a batch, which it has loaded alone, and where its samples are.

        Raises
        ------
        CutAfterLoading, UnknownBatch
            At the first batch: the others must be loaded whole, or are not to be split.
        """
        if self._layout is None:
            self._learn(share, indices)
            if self.is_whole:
                raise CutAfterLoading
        assert self._layout is not None
        if not self.is_whole:
            loaded = share.loaded.stop - share.loaded.start  # fewer come out where the function leaves samples out
            parts = self._agree(None if isinstance(batch, Refused) else kinds_of(batch, self._layout, loaded))
            self.is_whole = any(part is None or part != parts[0] for part in parts)
        if self.is_whole:  # for what is left of this iteration, which has loaded parts; the next one loads whole batches
            return self.of_whole(self._collate(self._fetch(indices)))
        return batch, share, self._layout

    def of_whole(self, batch: Any) -> tuple[Any, BatchShard | None, Layout | None]:
        """Return the rank's part of a whole batch, and where its samples are.

        That is all of one without samples (``None``: all were left out), or with other things or other numbers of them than of samples.
        All ranks have collated the same, so they decide alike.
        """
        assert self._layout is not None
        total = length_of(batch, self._layout)
        if not total:
            return batch, None, None
        if kinds_of(batch, self._layout, total) is None:
            self._on_unknown("structure unlike that of the first")
            return batch, None, None
        share = self._share(total)
        return cut(batch, share.loaded, self._layout), share, self._layout

    def of_probed(self, batch: Any) -> tuple[Any, BatchShard | None, Layout | None]:
        """Return the rank's part of a whole batch that a :class:`Probe` has made, and where its samples are; all of one without."""
        found = None
        if isinstance(batch, Probed):
            batch, found = batch.batch, batch.found
        if self._layout is None:
            try:
                self._settle(found, drew=False, counted=True)
            except UnknownBatch as error:
                self._on_unknown(str(error))
                return batch, None, None
        return self.of_whole(batch)

    def probe(self) -> Probe | None:
        """Return what collates in place of the user's function, and learns how its batches can be cut; ``None``: that is known."""
        if self._layout is None and self._probe is None:
            self._probe = Probe(self._collate, self._share)
        return self._probe if self._layout is None else None

    def _learn(self, share: BatchShard, indices: Sequence[Any]) -> None:
        found: Found = None
        drew, counted = bool(self._generators) or self._may_draw, False
        if share.loaded.stop - share.loaded.start < share.total:
            random_state, states = RandomState.now(), [state_of(generator) for generator in self._generators]
            samples = self._fetch(indices)
            keeper = keeper_of(self._collate)
            counters = None if keeper is None else Counters(keeper)
            whole = self._collate(list(samples))
            if counters is not None:  # a function that counts its batches is to see each once, and all of it
                counted = counters.have_changed()
                counters.set()
            part = collated_if_possible(self._collate, samples[share.loaded])
            found = compared(whole, part, share.total, share.loaded)  # None where the part was refused: all compute on whole batches
            drew |= not RandomState.now().equals(random_state)
            random_state.set()
            for generator, state in zip(self._generators, states, strict=True):
                set_state(generator, state)
        self._settle(found, drew=drew, counted=counted)

    def _settle(self, found: Found, *, drew: bool, counted: bool) -> None:
        """Decide, with all ranks, where the samples are, from what each has found of its own part. A collective."""
        of_ranks, drawn, counting = zip(*self._agree((found, drew, counted)), strict=True)
        layout: dict[Path, Any] = {}
        if any(other is None or list(other) != list(of_ranks[0]) for other in of_ranks):
            raise UnknownBatch("structure of its own")
        for path in of_ranks[0]:
            possible = [kind for kind in of_ranks[0][path][0] if all(kind in other[path][0] for other in of_ranks)]
            if not possible:
                raise UnknownBatch("tensor without a row per sample")
            if possible[0] == "attributes":
                raise UnknownBatch("tensor with attributes of its own")
            layout[path] = possible[0]
            # What was the same for all samples of this batch need not be so in the next: a count of some of them, ``None`` for none.
            self.is_whole |= possible[0] == "same" or not all(other[path][1] for other in of_ranks)
        if not any(isinstance(kind, int) for kind in layout.values()) and "entries" not in layout.values():
            raise UnknownBatch("structure of its own")
        self._layout = layout
        self.draws = self._whole_draws and any(drawn)
        self.is_whole |= self.draws or self._may_mix or any(counting)

    def _fetch(self, indices: Sequence[Any]) -> list[Any]:
        fetch = getattr(self._dataset, "__getitems__", None)
        samples: list[Any] = fetch(list(indices)) if fetch else [self._dataset[index] for index in indices]
        return samples


def is_default(loader: DataLoader[Any]) -> bool:
    """Return whether samples are put together by PyTorch's own function, along dim 0."""
    return loader.collate_fn is torch.utils.data.default_collate
