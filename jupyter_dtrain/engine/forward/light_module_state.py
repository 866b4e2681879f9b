"""A model as it was before a call that is not its first, and is made again where it turns out to be open, or to draw.

Hardly any such call is made again, and a small model's takes a fraction of a millisecond, so this keeps what a call may have changed and
nothing else: random states, the statistics of normalization layers, and attributes of a module once one of them is set.
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
    """A model before a call that is not its first.

    Parameters
    ----------
    stream : ModelStream, optional
    layers : iterable of module
        Its normalization layers.
    generators : iterable
        What it draws with beside PyTorch's own generators.
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
        """Return whether an attribute has another value now that is no tensor, and is not in `accepted`."""
        return any(
            (id(vars(attributes.module)), name) not in accepted
            for attributes in self._attributes.values()
            for name, now, before in attributes.others()
            if not isinstance(now, torch.Tensor | nn.Module) and not is_value(now, before)
        )

    def setting(self, module: nn.Module) -> None:
        """Note that an attribute of `module` is about to be set."""
        if id(module) not in self._attributes and not isinstance(module, torch.jit.ScriptModule):
            self._attributes[id(module)] = Attributes(module)

    def restore(self) -> None:
        """Undo what the call has done to the model and to random streams."""
        for attributes in self._attributes.values():
            attributes.restore()
        with torch.no_grad():
            for buffer, value in self._statistics:
                buffer.data.copy_(value)  # without counting, as in `ModuleState`
        self.rewind()

    def rewind(self) -> None:
        """Let random streams begin where they were."""
        if self._stream is not None and self._random is not None:
            self._stream.other = self._random
        self._cell_random.set()
        for generator, state in self._other_random:
            set_state(generator, state)


def drawn_with(model: nn.Module) -> list[Any]:
    """Return what a model may draw with beside PyTorch's own generators: Python's and NumPy's where its code has a word of them."""
    found = generators_in(model)
    if model_uses(model, lambda _, names: not _DRAWING.isdisjoint(names)):
        found.append(random._inst)
        if model_uses(model, lambda _, names: not _NUMPY.isdisjoint(names)):
            found.append(np.random.mtrand._rand)
    return found
