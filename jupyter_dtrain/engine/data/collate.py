"""Batches of user-defined collate functions: where their samples are, and whether a rank may load only its own.

Such a function applied to some samples need not return a part of the full batch: it pads to the longest, mixes samples, draws random
numbers. Therefore the first batch is collated in full and in part, and the results are compared. If the part equals a slice of the full
batch, and the function's code names nothing suspicious (``collate_words``), ranks load and collate only their own samples, and check for
every batch that they padded alike. Otherwise every rank collates the full batch, as a single process would, and keeps its part. If the
batch cannot be cut either (concatenated texts), every rank computes on all of it. A function may fail for a part of the samples (it
arranges them by class, or needs pairs): this is no error but counts as a part that does not match.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader

from ...capture.random_state import RandomState
from ..rng.generators import generators_in, set_state, state_of
from ..tensor.batch_shard import BatchShard
from .batch_comparison import compared
from .batch_layout import Layout, Path, UnknownBatch, cut, kinds_of, length_of
from .collate_probe import Found, Probe, Probed, Refused, collated_if_possible
from .collate_words import may_draw, may_mix
from .counters import Counters, keeper_of
from .handed_objects import are_plain, hands_on

Agree = Callable[[Any], list[Any]]


class CutAfterLoading(Exception):
    """Batches of this loader must be collated in full on every rank."""


class Collation:
    """What is known of one loader's batches.

    Parameters
    ----------
    loader : DataLoader
    share : callable
        Returns the rank's share of a batch of a given size.
    agree : callable
        Returns all ranks' values of its argument. A collective.
    whole_draws : bool
        Whether each rank must collate full batches if loading or collating draws random numbers.
    draws : bool
        Whether loading is known to draw, though perhaps not for the first batch.
    sees_whole : bool
        Whether the cell sees full batches.
    on_unknown : callable
        Called with a description of a later batch that cannot be split although the first one could.

    Attributes
    ----------
    is_whole : bool
        Whether each rank collates full batches.
    draws : bool
        Whether it does so because random numbers are drawn.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        share: Callable[[int], BatchShard],
        agree: Agree,
        *,
        whole_draws: bool,
        draws: bool = False,
        sees_whole: bool,
        on_unknown: Callable[[str], None],
    ) -> None:
        self._dataset, self._collate = loader.dataset, loader.collate_fn
        self._generators = generators_in((loader.dataset, loader.collate_fn))
        self._share, self._agree, self._whole_draws, self._on_unknown = share, agree, whole_draws, on_unknown
        self._probe: Probe | None = None
        self._layout: Layout | None = None
        self._sees_whole, self._hands_on = sees_whole, sees_whole and not loader.num_workers  # workers hand on copies
        self._has_objects = False
        self._may_mix, self._may_draw = may_mix(loader.collate_fn), draws or may_draw(loader.collate_fn)
        self.is_whole = self.draws = False

    def local_shard(self, batch: Any, share: BatchShard, indices: Sequence[Any]) -> tuple[Any, BatchShard | None, Layout | None]:
        """Return the rank's part of a batch, loaded by this rank alone, with its share and layout.

        Raises
        ------
        CutAfterLoading, UnknownBatch
            At the first batch: the loader's batches must be loaded in full, or cannot be split.
        """
        if self._layout is None:
            self._learn(batch, share, indices)
            if self.is_whole:
                raise CutAfterLoading
        assert self._layout is not None
        if not self.is_whole:
            loaded = share.loaded.stop - share.loaded.start  # the batch has fewer if the function drops samples
            parts = self._agree(
                None if isinstance(batch, Refused) or self._begins_to_hand_on(batch) else kinds_of(batch, self._layout, loaded)
            )
            self.is_whole = any(part is None or part != parts[0] for part in parts)
        if self.is_whole:  # this iteration has loaded parts: fetch the full batch; the next iteration loads full batches
            return self.of_whole(self._collate(self._fetch(indices)))
        return batch, share, self._layout

    def _begins_to_hand_on(self, batch: Any) -> bool:
        """Return whether a later batch is the first one with objects among its entries."""
        assert self._layout is not None
        return self._hands_on and not self._has_objects and "entries" in self._layout.values() and not are_plain(batch, self._layout)

    def of_whole(self, batch: Any) -> tuple[Any, BatchShard | None, Layout | None]:
        """Return the rank's part of a full batch, with its share and layout.

        A batch without samples (``None``: all were dropped), or that does not match the layout, is returned in full, without a share. All
        ranks collated the same batch, so they decide alike.
        """
        assert self._layout is not None
        total = length_of(batch, self._layout)
        if not total:
            return batch, None, None
        if kinds_of(batch, self._layout, total) is None:
            self._on_unknown("structure unlike that of the first")
            return batch, None, None
        share, layout = self._share(total), self._layout
        if self._sees_whole:  # the rank has all entries: the others' copies of them would not be the data set's own objects
            layout = {path: "same" if kind == "entries" else kind for path, kind in layout.items()}
        return cut(batch, share.loaded, layout), share, layout

    def of_probed(self, batch: Any) -> tuple[Any, BatchShard | None, Layout | None]:
        """Return the rank's part of a full batch from a :class:`Probe`, with its share and layout; the full batch if it cannot be cut."""
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
        """Return a replacement of the user's function that learns how its batches can be cut; ``None`` if that is known."""
        if self._layout is None and self._probe is None:
            self._probe = Probe(self._collate, self._share)
        return self._probe if self._layout is None else None

    def _learn(self, batch: Any, share: BatchShard, indices: Sequence[Any]) -> None:
        found: Found = None
        whole: Any = None
        drew, counted = bool(self._generators) or self._may_draw, False
        if share.loaded.stop - share.loaded.start < share.total:
            random_state, states = RandomState.now(), [state_of(generator) for generator in self._generators]
            samples = self._fetch(indices)
            keeper = keeper_of(self._collate)
            counters = None if keeper is None else Counters(keeper)
            whole = self._collate(list(samples))
            if counters is not None:  # a function that counts batches must see each full batch once
                counted = counters.have_changed()
                counters.set()
            part = collated_if_possible(self._collate, samples[share.loaded])
            found = compared(whole, part, share.total, share.loaded)  # None if the part was refused: all ranks compute on full batches
            drew |= not RandomState.now().equals(random_state)
            random_state.set()
            for generator, state in zip(self._generators, states, strict=True):
                set_state(generator, state)
        self._settle(found, drew=drew, counted=counted)
        if self._layout is not None and self._hands_on and "entries" in self._layout.values() and not self.is_whole:
            has_objects = found is not None and not are_plain(whole, self._layout)
            must_not_copy = has_objects and not isinstance(batch, Refused) and hands_on(batch, whole, self._layout)
            objects, uncopied = zip(*self._agree((has_objects, must_not_copy)), strict=True)
            self._has_objects, self.is_whole = any(objects), any(uncopied)

    def _settle(self, found: Found, *, drew: bool, counted: bool) -> None:
        """Decide the layout with all ranks, from what each has found in its own part. A collective."""
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
            # A value that all samples of this batch share may differ in the next: a count of some samples, or ``None`` for none.
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
    """Return whether `loader` uses PyTorch's own collate function, which stacks samples along dim 0."""
    return loader.collate_fn is torch.utils.data.default_collate
