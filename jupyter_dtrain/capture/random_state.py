"""RNG state of a process: PyTorch, NumPy and Python."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import xxhash

from ..system import cuda_random


@dataclass(frozen=True)
class RandomState:
    """The RNG state of the notebook: the cell continues it on the engines, and the notebook continues it after the cell.

    `torch_cuda` is that of the current GPU, ``None`` if there is none.
    """

    torch_cpu: torch.Tensor
    numpy_legacy: tuple[Any, ...]
    python: tuple[Any, ...]
    torch_cuda: torch.Tensor | None = None

    @classmethod
    def now(cls) -> RandomState:
        """Return the RNG state of this process."""
        return cls(torch.get_rng_state(), np.random.get_state(), random.getstate(), cuda_random.state())  # type: ignore[arg-type]

    def __reduce__(self) -> tuple[Any, ...]:
        # As arrays: pickling a tensor takes a millisecond.
        of_gpu = None if self.torch_cuda is None else self.torch_cuda.numpy()
        return _random_state, (self.torch_cpu.numpy(), self.numpy_legacy, self.python, of_gpu)

    def set(self) -> None:
        """Set the RNG state of this process."""
        torch.set_rng_state(self.torch_cpu)
        np.random.set_state(self.numpy_legacy)
        random.setstate(self.python)
        cuda_random.set_state(self.torch_cuda)

    def with_gpu(self) -> RandomState:
        """Return a copy with a GPU state; if the notebook has no GPU, it is seeded from the CPU state."""
        if self.torch_cuda is not None:
            return self
        return replace(self, torch_cuda=cuda_random.seeded(xxhash.xxh3_64_intdigest(self.torch_cpu.numpy().tobytes())))

    def digest(self) -> str:
        """Return a short digest that is equal for equal CPU states."""
        digest = xxhash.xxh3_64(self.torch_cpu.numpy().tobytes())
        digest.update(self.numpy_legacy[1].tobytes())
        digest.update(repr((self.numpy_legacy[2:], self.python)).encode())
        return digest.hexdigest()

    def equals(self, other: RandomState) -> bool:
        """Return whether the next random numbers are the same."""
        return self.equals_but_pythons(other) and self.python == other.python

    def equals_but_pythons(self, other: RandomState) -> bool:
        """Return whether the next random numbers are the same, except for those of Python's `random`."""
        keys, other_keys = self.numpy_legacy[1], other.numpy_legacy[1]
        return (
            # As bytes, several times as fast as `torch.equal`: a loader compares them around each batch.
            self.torch_cpu.numpy().tobytes() == other.torch_cpu.numpy().tobytes()
            and self.numpy_legacy[2:] == other.numpy_legacy[2:]
            and keys.tobytes() == other_keys.tobytes()
            and cuda_random.is_same(self.torch_cuda, other.torch_cuda)
        )


def _random_state(
    torch_cpu: np.ndarray[Any, Any],
    numpy_legacy: tuple[Any, ...],
    python: tuple[Any, ...],
    torch_cuda: np.ndarray[Any, Any] | None = None,
) -> RandomState:
    return RandomState(torch.from_numpy(torch_cpu), numpy_legacy, python, None if torch_cuda is None else torch.from_numpy(torch_cuda))
