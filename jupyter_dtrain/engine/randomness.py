"""Two random streams on every rank: the cell's and the model's.

The cell's stream is the notebook's own and the same on every rank, so shuffles, noise and whatever else the cell draws
agree. What a model draws inside (dropout) depends on the size of the rank's share and must differ between ranks, so
it comes from a stream of the rank. One rank alone has one stream, the notebook's: it draws what the notebook would.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass
class _State:
    cpu: torch.Tensor
    cuda: torch.Tensor | None

    @classmethod
    def now(cls) -> _State:
        return cls(torch.get_rng_state(), torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None)

    def set(self) -> None:
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda)


class ModelStream:
    """The rank's own stream. Entering switches to it, leaving switches back to the cell's."""

    def __init__(self, rank: int) -> None:
        cell = _State.now()
        seed = int(torch.randint(2**62, ()).item())  # follows from the cell's stream, so a seeded run stays seeded
        torch.manual_seed(seed + rank)
        self._other = _State.now()
        cell.set()

    def switch(self) -> None:
        """Exchange the stream in use for the other one."""
        current = _State.now()
        self._other.set()
        self._other = current
