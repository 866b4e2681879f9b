"""Local SGD (``--sync-every N``): each rank steps on the gradient of its share of a batch, and parameters are averaged every N steps.

What the cell reads is the same on all ranks. Values over a batch cover the full batch, as always, with each share computed from its rank's
parameters. Accessing a parameter, a gradient or an optimizer's state first replaces it by the mean over ranks. Where this is not possible,
gradients are exchanged in every step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ....options import RunOptions
from ..data_parallel.training import DataParallelTraining
from ..zero3.aliased_memory import storages_without_arrays
from .every_step import EveryStep
from .local_optimizers import LocalOptimizers
from .local_parameter import plain
from .local_parameters import LocalParameters
from .parameter_looks import ParameterLooks


class LocalSteps(EveryStep):
    """Local steps of one rank.

    Parameters
    ----------
    every : int
        Steps between two averages.
    training : DataParallelTraining
    """

    is_replicated = False  # optimizer states and gradients differ between ranks

    def __init__(self, every: int, training: DataParallelTraining) -> None:
        self._training, self._thread = training, threading.get_ident()
        # The storage of a tensor from the notebook has one more holder; with a view as an array, yet another one.
        homes = frozenset(storage._cdata for storage in storages_without_arrays(training.objects))
        self.parameters = LocalParameters(
            training.models, homes=homes, full_tensor=lambda tensor: training.wholes([tensor])[0], say=training.say
        )
        self.optimizers = LocalOptimizers(every, self.parameters, training.say)
        self._looks = ParameterLooks(self.parameters)

    @property
    def is_ahead(self) -> bool:
        """Whether this rank has parameters that differ from those of other ranks."""
        return self.parameters.is_any_ahead

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let the rank step locally, until the end of the ``with`` block."""
        self._training.shard_parameters(self.parameters, self.parameters)
        with self._looks.installed(), self.optimizers.installed():
            yield

    @contextmanager
    def as_it_is(self) -> Iterator[None]:
        """Let this thread access this rank's tensors, until the end of the ``with`` block."""
        is_cells = threading.get_ident() == self._thread
        with self._looks.quiet.on(), self.optimizers.quiet.on(), plain(self.parameters.all() if is_cells else ()):
            yield

    def finish(self) -> None:
        """Make the state of all ranks equal at the cell's end. Collective."""
        with self.optimizers.quiet.on():
            self.parameters.finish()
            self.optimizers.finish()

    def give_up(self) -> None:
        """Restore the class of parameters if another thread returns the cell's results."""
        if threading.get_ident() != self._thread:
            self._looks.end()

    def adopt(self, objects: Sequence[object]) -> None:
        """Follow `objects` too, which were read from a snapshot: nothing else has their memory."""
        self.parameters.own.adopt(objects)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for resuming from here."""
        return {"parameters": self.parameters.state_dict(), "optimizers": self.optimizers.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a :meth:`state_dict`."""
        self.parameters.load_state_dict(state.get("parameters", ()))
        self.optimizers.load_state_dict(state.get("optimizers", ()))


def steps_for(options: RunOptions, training: DataParallelTraining, *, num_ranks: int, say: Callable[[str], None]) -> EveryStep:
    """Return how the ranks step with `options`, and tell the user how the numbers change."""
    if options.sync_every == 1 or num_ranks == 1:
        return EveryStep()
    say(
        f"--sync-every {options.sync_every}: each engine steps on its own part of a batch, and parameters are averaged after every "
        f"{options.sync_every} steps, so weights differ from one process's, and with the number of engines; all engines end with the same."
    )
    return LocalSteps(options.sync_every, training)
