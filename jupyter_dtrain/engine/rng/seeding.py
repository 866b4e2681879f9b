"""Seed generators that the cell makes without a seed: all ranks must draw the same numbers, so they need the same entropy."""

from __future__ import annotations

import random
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from hashlib import shake_256
from pathlib import Path
from traceback import walk_stack
from typing import Any

import numpy as np
import torch
import torch.utils.data

from ...system.patches import patched
from ..user_frames import users_line

# Code with entropy of its own on each rank: data loading, as each sample is loaded by one rank, and names of temporary files.
_APART = (str(Path(torch.utils.data.__file__).parent), tempfile.__file__)


class CommonEntropy:
    """Gives the same entropy on every rank to requests from the cell's thread.

    Each line of the user's code has its own sequence, so requests of rank 0 alone do not shift the sequences of other lines.

    Parameters
    ----------
    seed : str
        Of the run, the same on all ranks.
    """

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._asked: Counter[tuple[str, int]] = Counter()
        self._thread = threading.get_ident()

    def state_dict(self) -> dict[tuple[str, int], int]:
        """Return the number of requests by line of the user's code."""
        return dict(self._asked)

    def load_state_dict(self, state: Mapping[tuple[str, int], int]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self._asked = Counter(state)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Seed NumPy's, Python's and PyTorch's generators alike on all ranks if no seed is given, until the end of the ``with`` block."""
        numpy_bits: Any = np.random.bit_generator  # the module's global `randbits` is `secrets.randbits`
        bits_of_system, seed_with = numpy_bits.randbits, random.Random.seed
        seed_global, seed_torch = random.seed, torch.seed

        def bits(number: int) -> Any:
            common = self._bits(number)
            return bits_of_system(number) if common is None else common

        def seed(generator: random.Random, a: Any = None, version: int = 2) -> None:
            seed_with(generator, self._bits(128) if a is None else a, version)

        @wraps(seed_global)
        def seed_of_module(a: Any = None, version: int = 2) -> None:
            seed_global(self._bits(128) if a is None else a, version)

        @wraps(seed_torch)
        def torch_seed() -> int:
            common = self._bits(63)
            if common is None:
                return seed_torch()
            torch.manual_seed(common)
            return common

        with ExitStack() as stack:
            for target, name, replacement in (
                (numpy_bits, "randbits", bits),
                (random.Random, "seed", seed),
                (random, "seed", seed_of_module),
                (torch, "seed", torch_seed),
            ):
                stack.enter_context(patched(target, name, replacement))
            yield

    def _bits(self, number: int) -> int | None:
        """Return `number` common bits for the line that requests them, ``None`` if the request gets the rank's own entropy."""
        if threading.get_ident() != self._thread:
            return None
        place = users_line()
        if place is None or any(frame.f_code.co_filename.startswith(_APART) for frame, _ in walk_stack(sys._getframe())):
            return None
        self._asked[place] += 1
        text = f"{self._seed} {place} {self._asked[place]}"
        return int.from_bytes(shake_256(text.encode()).digest((number + 7) // 8)) >> (-number % 8)
