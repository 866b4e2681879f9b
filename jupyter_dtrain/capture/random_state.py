"""The random state of a process: what a cell draws from, in PyTorch, NumPy and Python."""

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
    """The notebook's random streams: the cell continues them on the engines, and the notebook continues after it.

    `torch_cuda` is that of the current GPU, ``None`` where there is none.
    """

    torch_cpu: torch.Tensor
    numpy_legacy: tuple[Any, ...]
    python: tuple[Any, ...]
    torch_cuda: torch.Tensor | None = None

    @classmethod
    def now(cls) -> RandomState:
        """Return the state of this process."""
        return cls(torch.get_rng_state(), np.random.get_state(), random.getstate(), cuda_random.state())  # type: ignore[arg-type]

    def __reduce__(self) -> tuple[Any, ...]:
        # Arrays: a tensor takes a millisecond to pickle.
        of_gpu = None if self.torch_cuda is None else self.torch_cuda.numpy()
        return _random_state, (self.torch_cpu.numpy(), self.numpy_legacy, self.python, of_gpu)

    def set(self) -> None:
        """Make it the state of this process."""
        torch.set_rng_state(self.torch_cpu)
        np.random.set_state(self.numpy_legacy)
        random.setstate(self.python)
        cuda_random.set_state(self.torch_cuda)

    def with_gpu(self) -> RandomState:
        """Return this with a stream of GPUs, which follows from that of the CPU where the notebook has no GPU."""
        if self.torch_cuda is not None:
            return self
        return replace(self, torch_cuda=cuda_random.seeded(xxhash.xxh3_64_intdigest(self.torch_cpu.numpy().tobytes())))

    def digest(self) -> str:
        """Return a short text that is the same where the next numbers are the same, those of a GPU aside."""
        digest = xxhash.xxh3_64(self.torch_cpu.numpy().tobytes())
        digest.update(self.numpy_legacy[1].tobytes())
        digest.update(repr((self.numpy_legacy[2:], self.python)).encode())
        return digest.hexdigest()

    def equals(self, other: RandomState) -> bool:
        """Return whether the next numbers are the same."""
        keys, other_keys = self.numpy_legacy[1], other.numpy_legacy[1]
        return (
            torch.equal(self.torch_cpu, other.torch_cpu)
            and self.python == other.python
            and self.numpy_legacy[2:] == other.numpy_legacy[2:]
            and np.array_equal(keys, other_keys)
            and cuda_random.is_same(self.torch_cuda, other.torch_cuda)
        )


def _random_state(
    torch_cpu: np.ndarray[Any, Any],
    numpy_legacy: tuple[Any, ...],
    python: tuple[Any, ...],
    torch_cuda: np.ndarray[Any, Any] | None = None,
) -> RandomState:
    return RandomState(torch.from_numpy(torch_cpu), numpy_legacy, python, None if torch_cuda is None else torch.from_numpy(torch_cuda))
