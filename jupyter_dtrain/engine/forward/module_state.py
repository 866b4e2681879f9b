"""A model as it was before a call that is made again, or only to learn from."""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils import parametrize
from torch.utils import _pytree as pytree

from ...serialization.python_reducers import SlotValues
from ..code_inspection import model_uses
from ..rng.streams import ModelStream, OtherStreams, TorchState, generators_in, set_state, state_of
from ..tensor.placement_types import GlobalTensor

# Lists, dicts and sets that a model's attributes hold: a call fills them in place, which no attribute tells of.

_KINDS = (list, dict, set, deque)
MAPPINGS = (dict, SlotValues)
_OWN = frozenset(vars(nn.Module()))  # what PyTorch keeps of each module
_DEPTH, _MOST = 3, 100_000


class Containers:
    """Those of a model as they are now, but for very large ones."""

    def __init__(self, model: nn.Module) -> None:
        self._copies: list[tuple[Any, Any]] = []
        seen: set[int] = set()
        for module in model.modules():
            if not isinstance(module, torch.jit.ScriptModule):
                self._look((value for name, value in vars(module).items() if name not in _OWN), seen, _DEPTH)

    def _look(self, values: Iterable[Any], seen: set[int], depth: int) -> None:
        for value in values:
            if isinstance(value, _KINDS) and id(value) not in seen and len(value) <= _MOST:
                seen.add(id(value))
                self._copies.append((value, copy_of(value)))
                if depth > 1:
                    self._look(list(value.values()) if isinstance(value, dict) else list(value), seen, depth - 1)

    def filled(self) -> list[Any]:
        """Return those that hold something else now."""
        return [value for value, copy in self._copies if not is_same(value, copy)]

    def restore(self) -> None:
        """Let all hold what they held."""
        for value, copy in self._copies:
            refill(value, copy)


def contents(containers: Iterable[Any]) -> list[Any]:
    """Return what is in containers, to be compared with what is in them at another time."""
    return [list(value.items()) if isinstance(value, dict) else value.copy() for value in containers]


def hold_tensors(containers: Iterable[Any]) -> bool:
    """Return whether there is a tensor in one of `containers`."""
    return any(
        isinstance(leaf, torch.Tensor)
        for value in containers
        for leaf in pytree.tree_leaves(list(value.values()) if isinstance(value, dict) else list(value))
    )


def copy_of(holder: Any) -> Any:
    """Return a copy of what is in a list, a dict, a set or what holds attributes, to be given to the functions below."""
    return dict(holder) if isinstance(holder, MAPPINGS) else set(holder) if isinstance(holder, set) else list(holder)


def is_same(holder: Any, copy: Any) -> bool:
    """Return whether `holder` holds the very things that are in `copy`."""
    if len(holder) != len(copy):
        return False
    if isinstance(holder, MAPPINGS):
        return all(key in copy and copy[key] is value for key, value in holder.items())
    return bool(holder == copy) if isinstance(holder, set) else all(left is right for left, right in zip(holder, copy, strict=True))


def refill(holder: Any, copy: Any) -> None:
    """Let `holder` hold what is in `copy`, if it does not."""
    if not is_same(holder, copy):
        holder.clear()
        (holder.extend if isinstance(holder, list | deque) else holder.update)(copy)


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


# A model as it was before a call that is not its first, and is made again where it turns out to be open, or to draw.
#
# Hardly any such call is made again, and a small model's takes a fraction of a millisecond, so this keeps what a call may have changed
# and
# nothing else: random states, the statistics of normalization layers, and attributes of a module once one of them is set.

_DRAWING = frozenset(("choice", "choices", "gauss", "random", "randrange", "shuffle", "uniform"))
_NUMPY = frozenset(("np", "numpy"))


class BeforeLater:
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
                buffer.data.copy_(value)  # without counting, as in `Before`
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


# What is known of a module that a cell calls: one record, which is looked up at each call.


@dataclass(slots=True)
class Called:
    """What is known of a module that the cell calls.

    Attributes
    ----------
    is_model : bool, optional
        Whether it has parameters; ``None``: nobody has asked.
    is_lazy : bool
        It may have parameters without a shape yet (``nn.LazyLinear``).
    is_open : bool
    takes_batch_for_sequence : bool
        It is a layer of PyTorch's that goes along the batch, or a model that came to something else on parts: it needs all of it.
    num_hooks : int
        That had been registered when it was looked through for hooks.
    normalizes : bool
        It may have changed its statistics since these were taken.
    results : dict
        The dims of the batch in what it returns.
    drawn_with : list, optional
        What it may draw with beside PyTorch's own generators; ``None``: nobody has asked.
    marked : dict of bool to list of int
        Which of its arguments, counted as leaves, it lets require gradients (``x.requires_grad_()``), in training and in evaluation.
    """

    is_model: bool | None = None
    is_lazy: bool = True
    is_open: bool = False
    takes_batch_for_sequence: bool = False
    num_hooks: int = -1
    normalizes: bool = False
    results: dict[Any, Any] = field(default_factory=dict)
    drawn_with: list[Any] | None = None
    marked: dict[bool, list[int]] = field(default_factory=dict)
