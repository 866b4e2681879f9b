"""How many children NumPy's seed sequences have spawned, which NumPy lets nobody set."""

from __future__ import annotations

from typing import Any

import numpy as np

_Sequence = np.random.SeedSequence


def sequence_of(generator: Any) -> Any:
    """Return the seed sequence that a generator or bit generator spawns from; ``None`` if there is none of NumPy's own class."""
    found = getattr(getattr(generator, "bit_generator", generator), "seed_seq", None)
    return found if type(found) is _Sequence else None


def num_spawned(sequence: Any) -> int:
    """Return the number of children of a seed sequence so far."""
    return int(sequence.n_children_spawned)


def set_num_spawned(sequence: Any, number: int) -> None:
    """Set the number of children of a seed sequence, on which the seeds of the next ones depend."""
    if number != sequence.n_children_spawned:
        like = _Sequence(sequence.entropy, spawn_key=sequence.spawn_key, pool_size=sequence.pool_size, n_children_spawned=number)
        sequence.__setstate__(like.__reduce__()[2])  # as pickle calls it
