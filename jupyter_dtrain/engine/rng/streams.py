"""Random streams on every rank: the cell's, the model's and that of loading.

The cell's stream is the notebook's own and the same on every rank, so shuffles, noise and whatever else the cell draws
agree. Where a model draws for the rank's share (dropout), what it draws depends on the size of the share and must differ between ranks, so
it comes from a stream of the rank; so does what a data set draws for a sample (augmentation) where each rank loads samples of
its own. One rank alone has one stream, the notebook's: it draws what the notebook would.
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
    """The states of PyTorch's generators."""

    cpu: torch.Tensor
    cuda: torch.Tensor | None

    @classmethod
    def now(cls) -> TorchState:
        """Return the states of those in use."""
        # The generator itself: `drawing` watches who calls torch.get_rng_state.
        return cls(torch.default_generator.get_state(), torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None)

    def set(self) -> None:
        """Go on from here."""
        torch.default_generator.set_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda)

    def is_same(self, other: TorchState) -> bool:
        """Return whether this is the state of `other`."""
        pairs = (self.cpu, other.cpu), (self.cuda, other.cuda)
        # As bytes, in a fifth of the time that `torch.equal` takes: this is asked in each call of a model that draws nothing.
        return all(
            left is right or (left is not None and right is not None and left.numpy().tobytes() == right.numpy().tobytes())
            for left, right in pairs
        )

    def to_bytes(self) -> bytes:
        """Return what two equal states have in common."""
        return b"".join(state.numpy().tobytes() for state in (self.cpu, self.cuda) if state is not None)


@dataclass
class OtherStreams:
    """The states of Python's generator, of NumPy's, and of those that an object holds or its functions use."""

    python: Any
    numpy: Any
    own: list[tuple[Any, Any]]

    @classmethod
    def now(cls, holder: object) -> OtherStreams:
        """Return the states."""
        return cls.of(generators_in(holder))

    @classmethod
    def of(cls, generators: Iterable[Any]) -> OtherStreams:
        """Return the states of Python's generator, of NumPy's, and of `generators`."""
        return cls(random.getstate(), np.random.get_state(), [(generator, state_of(generator)) for generator in generators])

    def recapture(self) -> OtherStreams:
        """Return the states of the same generators as they are now."""
        return OtherStreams.of(generator for generator, _ in self.own)

    def set(self) -> None:
        """Go on from here."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        for generator, state in self.own:
            set_state(generator, state)

    def are(self, others: OtherStreams) -> bool:
        """Return whether these are the states of `others`."""
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
    """The rank's own stream. Entering switches to it, leaving switches back to the cell's."""

    def __init__(self, rank: int) -> None:
        cell = TorchState.now()
        seed = int(torch.randint(2**62, ()).item())  # follows from the cell's stream, so a seeded run stays seeded
        # Not all of `torch.manual_seed`: of devices that nobody uses it would keep in mind how to seed them one day.
        torch.default_generator.manual_seed(seed + rank)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed + rank)
        self.other = TorchState.now()  # the stream that is not in use
        cell.set()

    def switch(self) -> None:
        """Exchange the stream in use for the other one."""
        current = TorchState.now()
        self.other.set()
        self.other = current


class LoadingStream:
    """The rank's own stream for loading its samples, NumPy's and Python's generators included."""

    def __init__(self, rank: int) -> None:
        cell = RandomState.now()
        seed = int(torch.randint(2**62, (2,))[1].item()) + rank  # another one than the model's
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
        """Use the rank's stream."""
        self._switch()
        try:
            yield
        finally:
            self._switch()

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Use the cell's stream, also in the midst of loading: for the order of samples, on which all ranks agree."""
        if not self._loading:
            yield
            return
        self._switch()
        try:
            yield
        finally:
            self._switch()

    def state_dict(self) -> RandomState:
        """Return the state of the rank's stream, which is not in use."""
        return self._other

    def load_state_dict(self, state: RandomState) -> None:
        """Go on from `state`."""
        self._other = state

    def _switch(self) -> None:
        current = RandomState.now()
        self._other.set()
        self._other = current
        self._loading = not self._loading
