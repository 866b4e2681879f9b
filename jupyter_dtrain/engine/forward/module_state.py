"""State of a model before a call that is repeated or only made to learn from."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.utils import parametrize

from ..code_inspection import model_uses
from ..rng.streams import ModelStream, OtherStreams, TorchState
from ..tensor.placement_types import GlobalTensor
from .reached import Reached, reached_from
from .state import LARGE, CannotRestore, Change, State, same

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
    """Saved attributes of a module, with its registered parameters, buffers, submodules and hooks."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._attributes = dict(module.__dict__)
        # A module under construction may lack some of these.
        self._held = [(module.__dict__[name], dict(module.__dict__[name])) for name in _MEMBERS if name in module.__dict__]

    def are_others(self) -> bool:
        """Return whether the module's attributes have changed."""
        now = vars(self.module)
        return len(now) != len(self._attributes) or any(now.get(name, self) is not value for name, value in self._attributes.items())

    def others(self) -> Iterator[tuple[str, Any, Any]]:
        """Yield ``(name, current value, saved value)`` for each attribute that has changed."""
        for name, now in vars(self.module).items():
            before = self._attributes.get(name, self)
            if now is not before:
                yield name, now, before

    def restore(self) -> None:
        """Restore the saved attributes and remove all others."""
        self.module.__dict__.clear()
        self.module.__dict__.update(self._attributes)
        for members, before in self._held:
            members.clear()
            members.update(before)


class ModuleState:
    """State of a model before its first call, for repeating that call.

    Parameters
    ----------
    module : nn.Module
    stream : ModelStream, optional
    reached : Reached, optional
        What its call can change besides its parameters and buffers.
    leave_out : set of int
        Ids of objects to skip, because other code tracks them.
    per_rank : bool
        Whether normalization layers compute statistics of each rank's share.
    """

    def __init__(
        self,
        module: nn.Module,
        stream: ModelStream | None,
        *,
        reached: Reached | None = None,
        leave_out: frozenset[int] = frozenset(),
        per_rank: bool = False,
    ) -> None:
        self.reached = reached or reached_from(module)
        self._attributes = [
            Attributes(child)
            for child in module.modules()
            if not isinstance(child, torch.jit.ScriptModule)  # it keeps no attributes that Python could change
        ]
        self._state = State(self.reached, leave_out)
        # Writes that bypass version counters (`weight.data.copy_()`) are found by comparison, if the model's code names such functions.
        writes = may_write(module)
        room = _ROOM
        self._parameters: list[tuple[torch.Tensor, int, torch.Tensor | None]] = []
        for p in module.parameters():
            frozen = not p.requires_grad and p.nbytes <= min(room, LARGE)  # autograd prevents plain in-place writes to trainable ones
            room -= p.nbytes if frozen else 0
            self._parameters.append((p, p._version, p.detach().clone() if writes or frozen else None))
        self._buffers = [
            (buffer, buffer._version, buffer.clone(), name not in own)
            for child in module.modules()
            for own in [statistics_of(child, per_rank=per_rank)]
            for name, buffer in child.named_buffers(recurse=False)
            if not isinstance(buffer, GlobalTensor)
        ]
        # Normalization layers write running statistics without increasing versions: a changed version is the model's own write.
        layers = [child for child in module.modules() if isinstance(child, _NormBase) and statistics_of(child, per_rank=per_rank)]
        running = [tensor for layer in layers for tensor in (layer.running_mean, layer.running_var) if tensor is not None]
        self._running = [(tensor, tensor._version) for tensor in running]
        self._parametrized = dict(parametrize._cache)  # of `with parametrize.cached():`
        self._stream = stream
        self._random = None if stream is None else stream.other
        self._cell_random = TorchState.now()
        self._module, self._other_random = module, OtherStreams.now(module)

    def drop_hooks(self) -> None:
        """Disable forward hooks for a learning call, until :meth:`restore`."""
        for attributes in self._attributes:
            attributes.module.__dict__["_forward_hooks"] = OrderedDict()

    def written(self) -> bool:
        """Return whether the call wrote to a parameter or a buffer, other than a normalization layer's own updates of statistics."""
        buffers = ((buffer, version, value) for buffer, version, value, counts in self._buffers if counts)
        return any(
            tensor._version != version or (value is not None and not same(tensor, value))
            for tensor, version, value in (*buffers, *self._parameters)
        ) or any(tensor._version != version for tensor, version in self._running)

    def has_set(self) -> bool:
        """Return whether the call changed an attribute."""
        return any(attributes.are_others() for attributes in self._attributes)

    def changes(self) -> list[Change]:
        """Return what else has changed in the state that the model keeps or uses."""
        return self._state.changes()

    def has_drawn_elsewhere(self) -> bool:
        """Return whether the call drew from Python's stream, NumPy's or the model's own generators, untracked by sample."""
        return not OtherStreams.now(self._module).are(self._other_random)

    def restore(self) -> None:
        """Undo the call's changes to the model, to the state that it uses, and to random streams.

        Raises
        ------
        CannotRestore
            A parameter or other tensor without a copy was written to.
        """
        for attributes in self._attributes:
            attributes.restore()
        self._state.restore()
        with torch.no_grad():
            for parameter, version, value in self._parameters:
                if value is not None and not same(parameter, value):
                    parameter.data.copy_(value)
                elif value is None and parameter._version != version:
                    raise CannotRestore
            for buffer, version, value, counts in self._buffers:
                if buffer.shape != value.shape:
                    buffer.resize_(value.shape)  # the buffers of an observer are empty until its first call
                if counts and buffer._version != version:
                    buffer.copy_(value)
                elif not torch.equal(buffer, value):
                    buffer.data.copy_(value)  # does not increase versions, like normalization layers, scripted or not
        parametrize._cache.clear()  # the repeated call must compute its weights (power iterations) again
        parametrize._cache.update(self._parametrized)
        self.rewind()

    def rewind(self) -> None:
        """Reset random streams to their states before the call, so that a repeated call draws the same."""
        if self._stream is not None and self._random is not None:
            self._stream.other = self._random
        self._cell_random.set()
        self._other_random.set()


def may_write(model: nn.Module) -> bool:
    """Return whether non-PyTorch code that a call of `model` may run names functions that write to tensors."""
    return model_uses(model, _may_write, in_calls=True)


def _may_write(_code: object, names: set[str]) -> bool:
    return any(name in _WRITING or (name.endswith("_") and not name.startswith("_") and name != "requires_grad_") for name in names)


def statistics_of(module: nn.Module, *, per_rank: bool = False) -> tuple[str, ...]:
    """Return the names of buffers in which a PyTorch layer keeps statistics that are handled elsewhere.

    These are the buffers of BatchNorm, and with `per_rank` of InstanceNorm. A subclass with its own ``forward`` has none: it may use its
    buffers for anything.
    """
    kept = _NormBase if per_rank else _BatchNorm
    if isinstance(module, kept) and str(getattr(type(module).forward, "__module__", "")).startswith("torch."):
        return "running_mean", "running_var", "num_batches_tracked"
    return ()


_WRITING = frozenset(("data", "detach", "inference_mode", "no_grad", "numpy", "set_grad_enabled"))
_ROOM = 1 << 28  # most bytes for copies of frozen parameters
