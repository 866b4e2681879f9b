"""How each loader's batches are divided between the ranks: one plan for each loader, learned at its first batch.

A plan lasts as long as its loader, over all iterations of a cell. A new collate function starts a new plan, except that persistent workers
keep their function, and with it their plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from torch.utils.data import DataLoader, IterableDataset

from ..found_late import name_of_class
from ..identity_map import IdentityMap
from ..rng.generators import generators_in
from ..tensor.batch_shard import BatchShard
from .collate import Agree, Collation, is_default
from .fetch_effects import has_effects, tells_others
from .iterable import Streams
from .joined_batches import JoinedBatches, with_batches
from .own_iterators import iterates_itself


class Division(Enum):
    """What a rank loads of a batch of ``B`` samples, and what it computes on."""

    OWN_SAMPLES = "its own samples alone, by their indices"
    OWN_WORKERS = "batches of its own workers, which it hands to the others in parts"
    CUT = "all samples, of which it keeps its own"
    FULL = "all samples, and computes on all"


@dataclass(slots=True)
class LoaderPlan:
    """What is known of one loader.

    Attributes
    ----------
    collate_fn : callable
        The loader's collate function, for which the plan holds.
    joined : DataLoader, optional
        A copy of the loader whose batches each join several of its own; ``None`` if not needed.
    loading : DataLoader, optional
        The copy that loads this rank's samples, and owns persistent workers.
    own_workers : dict of int to DataLoader, optional
        By worker: the copies that run this rank's persistent workers.
    collation : Collation, optional
        The batch layout of a user-defined collate function.
    is_known : bool
        Whether a batch has been divided, so that the others can be.
    is_full : bool
        Whether batches cannot be cut.
    draws : bool
        Whether loading samples draws random numbers.
    leaves_effects : bool
        Whether loading has side effects, or the loader iterates by itself: each rank loads what a single process would.
    """

    collate_fn: Callable[[Any], Any]
    joined: DataLoader[Any] | None = None
    loading: DataLoader[Any] | None = None
    own_workers: dict[int, DataLoader[Any]] | None = None
    collation: Collation | None = None
    is_known: bool = False
    is_full: bool = False
    draws: bool = False
    leaves_effects: bool = False


class Checks(Protocol):
    """Compares what ranks load alone with full batches."""

    def needs_whole(self, loader: DataLoader[Any]) -> bool:
        """Return whether a loader's batches are known to require loading in full."""

    def differs(self, loader: DataLoader[Any], indices: Any, share: BatchShard) -> bool:
        """Check a batch that is about to be loaded; return whether every rank must load all of it."""

    def undo(self, loader: DataLoader[Any]) -> None:
        """Undo the effects of the batch for which :meth:`differs` returned true."""


class LoaderPlans:
    """The plans of a run's loaders.

    Parameters
    ----------
    together : int
        Number of the loader's batches that form one batch of the run.
    share : callable
        Returns the rank's share of a batch of a given size.
    agree : callable, optional
        Returns all ranks' values of its argument, a collective; ``None`` if there is one rank.
    whole_draws : bool
        Whether random numbers drawn while loading must equal those of a single process, for which every rank loads full batches.
    checks : Checks, optional
        Compares what ranks load alone with full batches.
    on_unknown : callable
        Called with a description of what keeps a batch from being split.
    sees_whole : bool
        Whether the cell sees full batches.
    full_batch : iterable of str
        Classes of data sets that draw, as `FoundLate` names them, though not for the first batch.
    """

    def __init__(
        self,
        *,
        together: int,
        share: Callable[[int], BatchShard],
        agree: Agree | None,
        whole_draws: bool,
        checks: Checks | None,
        on_unknown: Callable[[str], None],
        sees_whole: bool = True,
        full_batch: Iterable[str] = (),
    ) -> None:
        self._together, self.share, self.agree = together, share, agree
        self.whole_draws, self.checks, self.on_unknown = whole_draws, checks, on_unknown
        self._sees_whole, self._full_batch = sees_whole, frozenset(full_batch)
        self._plans: IdentityMap[LoaderPlan] = IdentityMap()

    def of(self, loader: DataLoader[Any]) -> LoaderPlan:
        """Return the plan of `loader`, which must be the cell's own and not a copy."""
        plan = self._plans.get(loader)
        if plan is None or (plan.collate_fn != loader.collate_fn and not loader.persistent_workers):
            plan = self._plans.set(loader, LoaderPlan(loader.collate_fn))
        return plan

    def draws_late(self, loader: DataLoader[Any]) -> bool:
        """Return whether an earlier try of the cell has shown that loading draws random numbers, though not for the first batch."""
        return bool(self._full_batch) and self.whole_draws and name_of_class(loader.dataset) in self._full_batch

    def with_joined_batches(self, plan: LoaderPlan, loader: DataLoader[Any]) -> DataLoader[Any]:
        """Return `loader`, or its copy with joined batches if each batch of the run joins several of the loader's."""
        if self._together == 1 or loader.batch_sampler is None:
            return loader
        if plan.joined is None:
            plan.joined = with_batches(loader, JoinedBatches(loader.batch_sampler, self._together))
            if loader.batch_size is not None:  # the length of iterable data is computed from it
                plan.joined.__dict__["batch_size"] = loader.batch_size * self._together
        return plan.joined

    def divide(self, plan: LoaderPlan, loader: DataLoader[Any]) -> Division:
        """Return how the batches of an iteration over `loader` that begins now are divided. The result is the same on all ranks."""
        if plan.is_full:
            return Division.FULL
        if loader.batch_sampler is None or isinstance(loader.dataset, IterableDataset):
            return self._divide_loaded(plan, loader)
        if self.agree is not None and plan.collation is None and not is_default(loader):
            plan.collation = Collation(
                loader,
                self.share,
                self.agree,
                whole_draws=self.whole_draws,
                draws=self.draws_late(loader),
                sees_whole=self._sees_whole,
                on_unknown=self.on_unknown,
            )
        plan.leaves_effects = plan.leaves_effects or iterates_itself(loader) or (self.agree is not None and has_effects(loader))
        by_itself = self.whole_draws and not (plan.is_known and loader.persistent_workers) and draws_by_itself(loader)
        if by_itself and plan.is_known and plan.collation is not None:  # it has got a generator since
            plan.collation.is_whole = True
        if plan.leaves_effects or (plan.collation is not None and plan.collation.is_whole):
            return Division.CUT
        plan.draws = by_itself or self.draws_late(loader) or (self.checks is not None and self.checks.needs_whole(loader)) or plan.draws
        return Division.CUT if plan.draws and plan.collation is None and self.agree is not None else Division.OWN_SAMPLES

    def _divide_loaded(self, plan: LoaderPlan, loader: DataLoader[Any]) -> Division:
        """Return how batches without indices are divided after loading."""
        if (
            self.agree is not None
            and not iterates_itself(loader)
            and Streams.can_share_out(loader)
            and not self._tells_others(plan, loader)
        ):
            return Division.OWN_WORKERS
        if self.agree is None or (is_default(loader) and loader.batch_sampler is not None):
            return Division.CUT
        plan.is_full = True  # one batch does not tell where samples are
        self.on_unknown("structure of its own")
        return Division.FULL

    @staticmethod
    def _tells_others(plan: LoaderPlan, loader: DataLoader[Any]) -> bool:
        plan.leaves_effects = plan.leaves_effects or tells_others(loader)
        return plan.leaves_effects


def draws_by_itself(loader: DataLoader[Any]) -> bool:
    """Return whether the dataset has its own generator."""
    return bool(generators_in(loader.dataset))
