"""A model as it was before a call that is made again, or only to learn from."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils import parametrize

from ..drawing.randomness import ModelStream, OtherStreams, TorchState
from ..view.placements import GlobalTensor
from ..words import model_uses
from .containers import Containers

_MEMBERS = (
    "_parameters",
    "_buffers",
    "_modules",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)


class Attributes:
    """The attributes of a module as they are now, and what it has registered."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._attributes = dict(module.__dict__)
        # A module that is being made may have nothing of this yet.
        self._held = [(module.__dict__[name], dict(module.__dict__[name])) for name in _MEMBERS if name in module.__dict__]

    def are_others(self) -> bool:
        """Return whether the module has others now."""
        now = vars(self.module)
        return len(now) != len(self._attributes) or any(now.get(name, self) is not value for name, value in self._attributes.items())

    def restore(self) -> None:
        """Let the module have these again, and no others."""
        self.module.__dict__.clear()
        self.module.__dict__.update(self._attributes)
        for members, before in self._held:
            members.clear()
            members.update(before)


class Before:
    """A model before its first call, to make that call again."""

    def __init__(self, module: nn.Module, stream: ModelStream | None) -> None:
        self._attributes = [
            Attributes(child)
            for child in module.modules()
            if not isinstance(child, torch.jit.ScriptModule)  # it keeps no attributes that Python could change
        ]
        self._containers = Containers(module)
        # What is written past PyTorch's count (`weight.data.copy_()`) is seen by comparing, where the code has a word of it.
        writes = may_write(module)
        self._parameters = [(p, p._version, p.detach().clone() if writes else None) for p in module.parameters()]
        self._buffers = [
            (buffer, buffer._version, buffer.clone(), not isinstance(child, _NormBase))
            for child in module.modules()
            for buffer in child.buffers(recurse=False)
            if not isinstance(buffer, GlobalTensor)
        ]
        self._parametrized = dict(parametrize._cache)  # of `with parametrize.cached():`
        self._stream = stream
        self._random = None if stream is None else stream.other
        self._cell_random = TorchState.now()
        self._module, self._other_random = module, OtherStreams.now(module)

    def drop_hooks(self) -> None:
        """Let nobody see the results of a call that is made only to learn from it, until :meth:`restore`."""
        for attributes in self._attributes:
            attributes.module.__dict__["_forward_hooks"] = OrderedDict()

    def written(self) -> bool:
        """Return whether the call has written to a parameter or to a buffer; those of normalization layers are theirs."""
        buffers = ((buffer, version, value) for buffer, version, value, counts in self._buffers if counts)
        return any(
            tensor._version != version or (value is not None and not _same(tensor, value))
            for tensor, version, value in (*buffers, *self._parameters)
        )

    def has_set(self) -> bool:
        """Return whether the call has set an attribute."""
        return any(attributes.are_others() for attributes in self._attributes)

    def filled(self) -> list[Any]:
        """Return the lists, dicts and sets in its attributes that hold something else now."""
        return self._containers.filled()

    def has_drawn_elsewhere(self) -> bool:
        """Return whether the call has drawn from Python's stream, from NumPy's or the model's own, where nobody sees for what."""
        return not OtherStreams.now(self._module).are(self._other_random)

    def restore(self) -> None:
        """Undo what the call has done to the model and to random streams."""
        for attributes in self._attributes:
            attributes.restore()
        self._containers.restore()
        with torch.no_grad():
            for parameter, _, value in self._parameters:
                if value is not None and not _same(parameter, value):
                    parameter.data.copy_(value)
            for buffer, version, value, counts in self._buffers:
                if buffer.shape != value.shape:
                    buffer.resize_(value.shape)  # an observer's are empty until its first call
                if counts and buffer._version != version:
                    buffer.copy_(value)
                elif not torch.equal(buffer, value):
                    buffer.data.copy_(value)  # normalization writes without counting, in scripted modules too, and so does this
        parametrize._cache.clear()  # else the call is made again with weights of this one, and without its power iterations
        parametrize._cache.update(self._parametrized)
        self.rewind()

    def rewind(self) -> None:
        """Let random streams begin where they were, so that a call takes the ways of the other."""
        if self._stream is not None and self._random is not None:
            self._stream.other = self._random
        self._cell_random.set()
        self._other_random.set()


def may_write(model: nn.Module) -> bool:
    """Return whether code in `model` that is not PyTorch's own has a word of writing into tensors."""
    return model_uses(model, lambda _, names: any(name in _WRITING or (name.endswith("_") and not name.startswith("_")) for name in names))


_WRITING = frozenset(("data", "no_grad"))


def _same(left: torch.Tensor, right: torch.Tensor) -> bool:
    left = left.detach()
    if left.shape != right.shape:
        return False
    return torch.equal(left, right) or (left.is_floating_point() and torch.allclose(left, right, rtol=0.0, atol=0.0, equal_nan=True))
