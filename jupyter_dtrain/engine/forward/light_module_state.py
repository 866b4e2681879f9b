"""State of a model before a call that is not its first, for repeating that call if the model turns out to be open or to draw.

Such calls are rarely repeated, and a small model's call takes a fraction of a millisecond. Therefore this keeps only what a call may
commonly change: random states, normalization statistics, and the attributes of a module once one of them is set.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from ..code_inspection import model_uses
from ..rng.generators import generators_in, set_state, state_of
from ..rng.streams import ModelStream, TorchState
from .module_state import Attributes
from .state import is_value

_DRAWING = frozenset(("choice", "choices", "gauss", "random", "randrange", "shuffle", "uniform"))
_NUMPY = frozenset(("np", "numpy"))


class LightModuleState:
    """State of a model before a call that is not its first.

    Parameters
    ----------
    stream : ModelStream, optional
    layers : iterable of module
        The model's normalization layers.
    generators : iterable
        Generators that the model may use besides PyTorch's own.
    """

    def __init__(self, stream: ModelStream | None, layers: Iterable[_NormBase], generators: Iterable[Any]) -> None:
        self._stream = stream
        self._random = None if stream is None else stream.other
        self._cell_random = TorchState.now()
        self._other_random = [(generator, state_of(generator)) for generator in generators]
        self._statistics = [
            (buffer, buffer.clone())
            for layer in layers
            if layer.training
            for buffer in (layer.running_mean, layer.running_var, layer.num_batches_tracked)
            if buffer is not None
        ]
        self._attributes: dict[int, Attributes] = {}

    def has_set(self, accepted: set[tuple[int, Any]]) -> bool:
        """Return whether an attribute that is neither a tensor nor a module, and not in `accepted`, has changed."""
        return any(
            (id(vars(attributes.module)), name) not in accepted
            for attributes in self._attributes.values()
            for name, now, before in attributes.others()
            if not isinstance(now, torch.Tensor | nn.Module) and not is_value(now, before)
        )

    def setting(self, module: nn.Module) -> None:
        """Save the attributes of `module`, one of which is about to be set."""
        if id(module) not in self._attributes and not isinstance(module, torch.jit.ScriptModule):
            self._attributes[id(module)] = Attributes(module)

    def restore(self) -> None:
        """Undo the call's changes to attributes, normalization statistics and random streams."""
        for attributes in self._attributes.values():
            attributes.restore()
        with torch.no_grad():
            for buffer, value in self._statistics:
                buffer.data.copy_(value)  # without increasing versions, as in `ModuleState`
        self.rewind()

    def rewind(self) -> None:
        """Reset the random streams to their states before the call."""
        if self._stream is not None and self._random is not None:
            self._stream.other = self._random
        self._cell_random.set()
        for generator, state in self._other_random:
            set_state(generator, state)


def drawn_with(model: nn.Module) -> list[Any]:
    """Return the generators that a model may use besides PyTorch's own: Python's and NumPy's if its code names their functions."""
    found = generators_in(model)
    if model_uses(model, lambda _, names: not _DRAWING.isdisjoint(names)):
        found.append(random._inst)
        if model_uses(model, lambda _, names: not _NUMPY.isdisjoint(names)):
            found.append(np.random.mtrand._rand)
    return found
