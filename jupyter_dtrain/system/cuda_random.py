"""Get and set the random state of a GPU, whether or not the notebook has used the GPU yet.

PyTorch keeps a seed and an offset (Philox): 16 bytes. Before CUDA is initialized there is no generator, but `torch.manual_seed` has
already determined its seed.
"""

from __future__ import annotations

import struct

import torch

_STATE = struct.Struct("<Qq")  # seed and offset, as `CUDAGeneratorImpl::get_state` writes them


def seeded(seed: int) -> torch.Tensor:
    """Return the state of a stream that was seeded but not drawn from, as a CPU tensor of bytes, (16,)."""
    return torch.frombuffer(bytearray(_STATE.pack(seed % 2**64, 0)), dtype=torch.uint8)


def state() -> torch.Tensor | None:
    """Return the state of the current GPU's stream, ``None`` if this process can use no GPU. Does not initialize CUDA."""
    if torch.cuda.is_initialized():
        return torch.cuda.get_rng_state()
    return seeded(torch.initial_seed()) if _may_initialize() else None


def set_state(new: torch.Tensor | None) -> None:
    """Set the state of the current GPU's stream; do nothing for ``None``, or if this process can use no GPU."""
    if new is None or is_same(before := state(), new) or before is None:
        return
    torch.cuda.init()  # otherwise a seed from an earlier `torch.manual_seed` would be applied after it
    torch.cuda.set_rng_state(new)


def is_same(left: torch.Tensor | None, right: torch.Tensor | None) -> bool:
    """Return whether two states give the same random numbers."""
    if left is None or right is None:
        return left is right
    return left.numpy().tobytes() == right.numpy().tobytes()


def _may_initialize() -> bool:
    # A fork of a process that has initialized CUDA cannot use it.
    return torch.version.cuda is not None and not torch.cuda._is_in_bad_fork() and torch.cuda.is_available()
