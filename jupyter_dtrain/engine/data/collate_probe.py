"""Probe a user-defined collate function: compare the collated part of a rank with the full batch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils.data._utils.pin_memory import pin_memory

from ...capture.random_state import RandomState
from ...system.thread_output import kept_apart
from ..rng.streams import OtherStreams
from ..tensor.batch_shard import BatchShard
from .batch_comparison import compared
from .batch_layout import Path
from .fetch_state import FetchState

Found = dict[Path, tuple[list[int | str], bool]] | None
"""Result of :func:`compared` for the rank's part; ``None``: not a part of the full batch."""


class Refused:
    """Stands for a batch: the collate function failed on the rank's samples alone."""


def collated_if_possible(collate: Callable[[Any], Any], samples: Any) -> Any:
    """Return the collated samples, or `Refused` if the function fails; the full batch shows whether that is an error."""
    try:
        return collate(samples)
    except Exception:  # collating the full batch raises it again if it is an error
        return Refused()


@dataclass
class Probed:
    """A full batch, and the comparison of the rank's part with it."""

    batch: Any
    found: Found

    def pin_memory(self) -> Probed:
        """Pin the batch, as a DataLoader does."""
        return Probed(pin_memory(self.batch), self.found)


class Probe:
    """Collates full batches; for the first one, collates and compares the rank's part as well, and undoes the side effects of that.

    Used for loaders that have side effects: their batches cannot be loaded a second time to learn from.
    """

    def __init__(self, collate: Callable[[Any], Any], share: Callable[[int], BatchShard]) -> None:
        self._collate, self._share, self._done = collate, share, False

    def __call__(self, samples: Any) -> Any:
        """Return the full batch, the first time as `Probed`."""
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
            with kept_apart():
                return collated_if_possible(self._collate, copy.deepcopy(samples[share.loaded]))
        except Exception:  # a sample cannot be copied
            return Refused()
        finally:
            state.restore()
            random_state.set()
            streams.set()
