"""The random streams of a rank: the cell's, the model's, and one for data loading.

The cell's stream is the notebook's own and equal on every rank, so that shuffles, noise and other draws of the cell agree. Draws of a model
for its shard (dropout) depend on the shard's size and must differ between ranks, so they come from a stream of the rank. So do draws of a
data set for a sample (augmentation), if each rank loads its own samples. A single rank uses the notebook's stream for everything.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...capture.random_state import RandomState
from .generators import generators_in, set_state, state_of


@dataclass
class TorchState:
    """The states of PyTorch's default generators on the CPU and the current CUDA device."""

    cpu: torch.Tensor
    cuda: torch.Tensor | None

    @classmethod
    def now(cls) -> TorchState:
        """Return the current states."""
        # Asks the generator itself, as `recomputed_draws` watches the callers of `torch.get_rng_state`.
        return cls(torch.default_generator.get_state(), torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None)

    def set(self) -> None:
        """Set the generators to these states."""
        torch.default_generator.set_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda)

    def is_same(self, other: TorchState) -> bool:
        """Return whether the states equal those of `other`."""
        pairs = (self.cpu, other.cpu), (self.cuda, other.cuda)
        # Compared as bytes, five times as fast as `torch.equal`: each call of a model that draws nothing comes here.
        return all(
            left is right or (left is not None and right is not None and left.numpy().tobytes() == right.numpy().tobytes())
            for left, right in pairs
        )

    def to_bytes(self) -> bytes:
        """Return the states as bytes, equal for equal states."""
        return b"".join(state.numpy().tobytes() for state in (self.cpu, self.cuda) if state is not None)


@dataclass
class OtherStreams:
    """The states of Python's and NumPy's global generators, and of generators that an object holds or its functions use."""

    python: Any
    numpy: Any
    own: list[tuple[Any, Any]]

    @classmethod
    def now(cls, holder: object) -> OtherStreams:
        """Return the current states, with the generators that :func:`generators_in` finds in `holder`."""
        return cls.of(generators_in(holder))

    @classmethod
    def of(cls, generators: Iterable[Any]) -> OtherStreams:
        """Return the current states of Python's and NumPy's global generators and of `generators`."""
        return cls(random.getstate(), np.random.get_state(), [(generator, state_of(generator)) for generator in generators])

    def recapture(self) -> OtherStreams:
        """Return the current states of the same generators."""
        return OtherStreams.of(generator for generator, _ in self.own)

    def set(self) -> None:
        """Set the generators to these states."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        for generator, state in self.own:
            set_state(generator, state)

    def are(self, others: OtherStreams) -> bool:
        """Return whether the states equal those of `others`."""
        own, other_own = [state for _, state in self.own], [state for _, state in others.own]
        return self.python == others.python and _same(self.numpy, others.numpy) and _same(own, other_own)


def _same(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(_same, left, right))
    return bool(np.array_equal(left, right) if isinstance(left, np.ndarray | torch.Tensor) else left == right)


class ModelStream:
    """The rank's own PyTorch stream, beside the cell's. :meth:`switch` exchanges the one in use.

    Parameters
    ----------
    rank : int

    Attributes
    ----------
    other : TorchState
        The stream that is not in use.
    """

    def __init__(self, rank: int) -> None:
        cell = TorchState.now()
        seed = int(torch.randint(2**62, (), device="cpu").item())  # drawn from the cell's stream, so that a seeded run stays deterministic
        # Not `torch.manual_seed`: for a device that is not initialized it would queue a seed.
        torch.default_generator.manual_seed(seed + rank)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed + rank)
        self.other = TorchState.now()
        cell.set()

    def switch(self) -> None:
        """Exchange the stream in use for the other one."""
        current = TorchState.now()
        self.other.set()
        self.other = current


class LoadingStream:
    """The rank's own stream for loading its samples: PyTorch's, NumPy's and Python's generators."""

    def __init__(self, rank: int) -> None:
        cell = RandomState.now()
        seed = int(torch.randint(2**62, (2,), device="cpu")[1].item()) + rank  # the second number, as the model's stream uses the first
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        self._other = RandomState.now()
        self._loading = False
        cell.set()

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Use the rank's stream until the end of the ``with`` block."""
        self._switch()
        try:
            yield
        finally:
            self._switch()

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Use the cell's stream until the end of the ``with`` block, also within :meth:`loading`: for the common order of samples."""
        if not self._loading:
            yield
            return
        self._switch()
        try:
            yield
        finally:
            self._switch()

    def state_dict(self) -> RandomState:
        """Return the state of the rank's stream. Not within :meth:`loading`."""
        return self._other

    def load_state_dict(self, state: RandomState) -> None:
        """Set the state of the rank's stream."""
        self._other = state

    def _switch(self) -> None:
        current = RandomState.now()
        self._other.set()
        self._other = current
        self._loading = not self._loading
