"""Local SGD (``--sync-every N``): each rank steps on the gradient of its own part of a batch, and parameters are averaged every N steps.

What the cell reads is the same on all ranks: numbers over a batch are of all of it, as they always are, each part computed with its
rank's parameters; and whoever looks at a parameter, a gradient or an optimizer's state gets the ranks' mean, which is put in its place
first. Whatever this cannot be done for is exchanged in every step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from ....options import RunOptions
from ....serialization.array_windows import storages_in_windows
from ..data_parallel.training import DataParallelTraining
from .every_step import EveryStep
from .local_optimizers import LocalOptimizers
from .local_parameter import plain
from .local_parameters import LocalParameters
from .parameter_looks import ParameterLooks


class LocalSteps(EveryStep):
    """Steps of one rank's own.

    Parameters
    ----------
    every : int
        Steps from exchange to exchange.
    training : DataParallelTraining
    """

    is_replicated = False  # optimizer states and gradients are each rank's own

    def __init__(self, every: int, training: DataParallelTraining) -> None:
        self._training, self._thread = training, threading.get_ident()
        objects = training.objects
        tensors = [obj for obj in objects if isinstance(obj, torch.Tensor) and not is_lazy(obj) and obj.layout == torch.strided]
        # What came from the notebook has one more who holds its memory; what an array looks into as well, yet another one.
        homes = frozenset(tensor.untyped_storage()._cdata for tensor in tensors) - storages_in_windows(objects)
        self.parameters = LocalParameters(
            training.models, homes=homes, full_tensor=lambda tensor: training.wholes([tensor])[0], say=training.say
        )
        self.optimizers = LocalOptimizers(every, self.parameters, training.say)
        self._looks = ParameterLooks(self.parameters)

    @property
    def is_ahead(self) -> bool:
        """Whether this rank has parameters that others have not."""
        return self.parameters.is_any_ahead

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let the rank step by itself, until the end of the ``with`` block."""
        self._training.shard_parameters(self.parameters, self.parameters)
        with self._looks.installed(), self.optimizers.installed():
            yield

    @contextmanager
    def as_it_is(self) -> Iterator[None]:
        """Let this thread see what this rank has, until the end of the ``with`` block."""
        is_cells = threading.get_ident() == self._thread
        with self._looks.quiet.on(), self.optimizers.quiet.on(), plain(self.parameters.all() if is_cells else ()):
            yield

    def finish(self) -> None:
        """Let all ranks have the same at the cell's end. Collective."""
        with self.optimizers.quiet.on():
            self.parameters.finish()
            self.optimizers.finish()

    def give_up(self) -> None:
        """Let parameters be plain where another thread takes home what the cell has made."""
        if threading.get_ident() != self._thread:
            self._looks.end()

    def state_dict(self) -> dict[str, Any]:
        """Return what a run that goes on from here has to know."""
        return {"parameters": self.parameters.state_dict(), "optimizers": self.optimizers.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a :meth:`state_dict`."""
        self.parameters.load_state_dict(state.get("parameters", ()))
        self.optimizers.load_state_dict(state.get("optimizers", ()))


def steps_for(options: RunOptions, training: DataParallelTraining, *, num_ranks: int, say: Callable[[str], None]) -> EveryStep:
    """Return how the ranks step as `options` ask for it, and tell the user what becomes of the numbers."""
    if options.sync_every == 1 or num_ranks == 1:
        return EveryStep()
    say(
        f"--sync-every {options.sync_every}: each engine steps on its own part of a batch, and parameters are averaged after every "
        f"{options.sync_every} steps, so weights differ from one process's, and with the number of engines; all engines end with the same."
    )
    return LocalSteps(options.sync_every, training)
