"""The random stream of a GPU, as a notebook has it whether or not it has used the GPU yet.

PyTorch keeps a seed and a position in a stream that needs no other memory (Philox): 16 bytes. Before CUDA is initialized there is no
generator, but `torch.manual_seed` has said already what it will begin with.
"""

from __future__ import annotations

import struct

import torch

_STATE = struct.Struct("<Qq")  # seed and offset, as `CUDAGeneratorImpl::get_state` writes them


def seeded(seed: int) -> torch.Tensor:
    """Return the state of a stream that was seeded and not drawn from, a tensor of bytes on the CPU."""
    return torch.frombuffer(bytearray(_STATE.pack(seed % 2**64, 0)), dtype=torch.uint8)


def state() -> torch.Tensor | None:
    """Return the state of the current GPU's stream, ``None`` where this process can use no GPU. Initializes nothing."""
    if torch.cuda.is_initialized():
        return torch.cuda.get_rng_state()
    return seeded(torch.initial_seed()) if _may_initialize() else None


def set_state(new: torch.Tensor | None) -> None:
    """Let the current GPU's stream go on from `new`; does nothing for ``None``, or where this process can use no GPU."""
    if new is None or is_same(before := state(), new) or before is None:
        return
    torch.cuda.init()  # otherwise what `torch.manual_seed` has said before would come after it
    torch.cuda.set_rng_state(new)


def is_same(left: torch.Tensor | None, right: torch.Tensor | None) -> bool:
    """Return whether the next numbers are the same."""
    if left is None or right is None:
        return left is right
    return left.numpy().tobytes() == right.numpy().tobytes()


def _may_initialize() -> bool:
    # A fork of a process that has used a GPU cannot.
    return torch.version.cuda is not None and not torch.cuda._is_in_bad_fork() and torch.cuda.is_available()
