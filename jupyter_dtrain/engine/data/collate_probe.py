"""A first look at what a collate function of the user does with samples: what a rank's part of a batch is of the whole."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any

from torch.utils.data._utils.pin_memory import pin_memory

from ...capture.random_state import RandomState
from ..rng.streams import OtherStreams
from ..tensor.batch_shard import BatchShard
from .batch_comparison import compared
from .batch_layout import Path
from .fetch_state import FetchState

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
