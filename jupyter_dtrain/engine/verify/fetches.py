"""Compares batches of which each rank loads only its own samples with full batches.

Before a rank loads its shard of a checked batch, it loads the full batch in this process, as one process would, and then its shard, each
from the same state, which is restored afterwards. The samples have to be equal, and so has the state that loading leaves in everything
that the data set can reach. A data set that counts its accesses, or mixes a sample with the one before, is then loaded in full by every
rank. State in the copies of workers cannot be seen; it counts only if later samples depend on it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import DataLoader

from ..data.batch_comparison import has_other_values
from ..data.collate import is_default
from ..identity_map import IdentityMap
from ..tensor.batch_shard import BatchShard
from .frozen import Freezer, Frozen, apart
from .noted_state import Changes, StateBefore
from .report import Finding, GoBack, kind_of, shown
from .schedule import Schedule, Turn
from .trial import GivenUp, obstacle, unnoticed

Agree = Callable[[Any], list[Any]]


@dataclass
class _Loaded:
    """The result of loading some samples."""

    samples: list[Any] = field(default_factory=list)
    batch: Any = None
    following: Frozen = None
    changes: Changes = field(default_factory=dict)
    said: str = ""
    cached: list[int] = field(default_factory=list)
    given_up: str = ""


class FetchChecks:
    """Checks the batches of loaders.

    Parameters
    ----------
    agree : callable
        Returns all ranks' values of its argument. Collective.
    whole : iterable of str
        Names of classes of data sets that are loaded in full by every rank.
    say : callable
        Shows a note to the user.
    step : callable
        Returns the number of steps so far.
    schedule : Schedule
    world_size : int
        Number of ranks.
    """

    def __init__(
        self,
        *,
        agree: Agree,
        whole: Sequence[str] = (),
        say: Callable[[str], None],
        step: Callable[[], int],
        schedule: Schedule,
        world_size: int = 1,
    ) -> None:
        self._agree, self._whole, self._say, self._step = agree, frozenset(whole), say, step
        self.schedule, self._world_size = schedule, world_size
        self._turns: IdentityMap[Turn] = IdentityMap()
        self._before: IdentityMap[StateBefore] = IdentityMap()

    def needs_whole(self, loader: DataLoader[Any]) -> bool:
        """Return whether a loader is known to need full batches on every rank."""
        return bool(self._whole) and kind_of(type(loader.dataset)) in self._whole

    def differs(self, loader: DataLoader[Any], indices: Sequence[Any], share: BatchShard) -> bool:
        """Check a batch that is about to be loaded; return whether every rank has to load all of it. Collective if it is checked.

        Raises
        ------
        GoBack
            Earlier batches may have been wrong, too.
        """
        turn = self._turns.get(loader) or self._turns.set(loader, self.schedule.new_turn())
        if not self.schedule.note(turn) or not (turn.is_open or self._opens(turn, loader)):
            return False
        began = time.perf_counter()
        before = StateBefore([(f"`{type(loader.dataset).__name__}`", loader.dataset), ("", loader.collate_fn)])
        whole = self._try(loader, indices, share.loaded, before)
        part = self._try(loader, indices[share.loaded], slice(None), before)
        given_up = whole.given_up or part.given_up
        found = "" if given_up else self._different(loader, whole, part, share, is_first=turn.calls == 1)
        of_ranks = self._agree((given_up, found, time.perf_counter() - began, self.schedule.now()))
        self.schedule.follow(turn, [(seconds, now) for *_, seconds, now in of_ranks])
        found = next((found for _, found, *_ in of_ranks if found), "")
        if not found or any(given_up for given_up, *_ in of_ranks):
            turn.checked, turn.last = self._step(), turn.calls
            return False
        if turn.calls > turn.last + 1:
            raise GoBack((Finding(kind_of(type(loader.dataset)), found),), turn.checked)
        self._before.set(loader, before)
        name = shown(kind_of(type(loader.dataset)))
        self._say(f"`{name}` gave another result for a part of a batch ({found}) than for all of it: every engine loads whole batches.")
        return True

    def _opens(self, turn: Turn, loader: DataLoader[Any]) -> bool:
        """Return whether the first check of a loader is made now. Collective."""
        # To load a shard takes one process, or each of the workers, no longer than lies between two batches.
        between = (self.schedule.now() - turn.since) / turn.calls
        cost = between * max(loader.num_workers, 1) * (self._world_size + 1)
        return self.schedule.opens(turn, self._agree(self.schedule.estimate(cost)))

    def undo(self, loader: DataLoader[Any]) -> None:
        """Restore the state before the batch for which :meth:`differs` has returned true."""
        before = self._before.get(loader)
        if before is not None:
            self._before.remove(loader)
            before.restore()

    def _try(self, loader: DataLoader[Any], indices: Sequence[Any], own: slice, before: StateBefore) -> _Loaded:
        """Load samples, of which `own` are the rank's, and restore the state."""
        loaded = _Loaded(given_up=before.reachable.obstacle or obstacle())
        if loaded.given_up:
            return loaded
        cached = [(content, name, content[name]) for content, name in before.reachable.caches if name in content]
        try:
            with unnoticed() as said:
                before.forbid_writing()
                for content, name, function in cached:
                    content[name] = functools.lru_cache(**function.cache_parameters())(function.__wrapped__)
                with before.writes:
                    samples = _fetch(loader.dataset, indices)
                    loaded.batch = None if is_default(loader) else loader.collate_fn(list(samples))
                loaded.cached = [content[name].cache_info().currsize for content, name, _ in cached]
                for content, name, function in cached:
                    content[name] = function
                if before.has_drawn():
                    loaded.given_up = "it draws random numbers"
                    return loaded
                loaded.samples = [Freezer({}).frozen(sample) for sample in samples[own]]
                loaded.changes = before.changes()
                if loader.num_workers and loaded.changes:
                    with before.writes:
                        loaded.following = Freezer({}).frozen(_fetch(loader.dataset, indices[own]))
            loaded.said = said.getvalue()
        except GivenUp as error:
            loaded.given_up = str(error)
        except Exception as error:  # if it is one, it shows again
            loaded.given_up = f"it fails ({type(error).__name__})"
        finally:
            before.restore()
        return loaded

    @staticmethod
    def _different(loader: DataLoader[Any], whole: _Loaded, part: _Loaded, share: BatchShard, *, is_first: bool) -> str:
        """Return what differs on this rank."""
        if apart(whole.samples, part.samples):
            return "its samples"
        # Of the first batch, and of sizes, the loader's `Collation` finds it out itself.
        if not is_default(loader) and not is_first and has_other_values(whole.batch, part.batch, share.total, share.loaded):
            return "what is made of them"
        if loader.num_workers:
            return "samples that come later" if apart(whole.following, part.following) else ""
        for key in dict.fromkeys((*whole.changes, *part.changes)):
            if key not in whole.changes or key not in part.changes or apart(whole.changes[key][1], part.changes[key][1]):
                where = (whole.changes.get(key) or part.changes[key])[0]
                return f"`{where.replace('`', '')}`"
        if whole.cached != part.cached:
            return "what a cache of its results holds"
        return "" if whole.said == part.said else "what it prints"


def _fetch(dataset: Any, indices: Sequence[Any]) -> list[Any]:
    fetch = getattr(dataset, "__getitems__", None)
    return list(fetch(list(indices))) if fetch else [dataset[index] for index in indices]
