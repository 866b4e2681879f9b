"""A model as it was before a call that is made again, or only to learn from."""

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

    def others(self) -> Iterator[tuple[str, Any, Any]]:
        """Yield the names of attributes that have other values now, these, and those from before."""
        for name, now in vars(self.module).items():
            before = self._attributes.get(name, self)
            if now is not before:
                yield name, now, before

    def restore(self) -> None:
        """Let the module have these again, and no others."""
        self.module.__dict__.clear()
        self.module.__dict__.update(self._attributes)
        for members, before in self._held:
            members.clear()
            members.update(before)


class ModuleState:
    """A model before its first call, to make that call again.

    Parameters
    ----------
    module : nn.Module
    stream : ModelStream, optional
    reached : Reached, optional
        What a call of it can change beside its parameters and buffers.
    leave_out : set of int
        Ids of objects among that of which others keep account.
    per_rank : bool
        Normalization layers take their statistics of each rank's part.
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
        # What is written past PyTorch's count (`weight.data.copy_()`) is seen by comparing, where the code has a word of it.
        writes = may_write(module)
        room = _ROOM
        self._parameters: list[tuple[torch.Tensor, int, torch.Tensor | None]] = []
        for p in module.parameters():
            frozen = not p.requires_grad and p.nbytes <= min(room, LARGE)  # autograd lets nobody write into others by the way
            room -= p.nbytes if frozen else 0
            self._parameters.append((p, p._version, p.detach().clone() if writes or frozen else None))
        self._buffers = [
            (buffer, buffer._version, buffer.clone(), name not in own)
            for child in module.modules()
            for own in [statistics_of(child, per_rank=per_rank)]
            for name, buffer in child.named_buffers(recurse=False)
            if not isinstance(buffer, GlobalTensor)
        ]
        # Theirs are written without counting: a version that is another one is somebody else's.
        layers = [child for child in module.modules() if isinstance(child, _NormBase) and statistics_of(child, per_rank=per_rank)]
        running = [tensor for layer in layers for tensor in (layer.running_mean, layer.running_var) if tensor is not None]
        self._running = [(tensor, tensor._version) for tensor in running]
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
            tensor._version != version or (value is not None and not same(tensor, value))
            for tensor, version, value in (*buffers, *self._parameters)
        ) or any(tensor._version != version for tensor, version in self._running)

    def has_set(self) -> bool:
        """Return whether the call has set an attribute."""
        return any(attributes.are_others() for attributes in self._attributes)

    def changes(self) -> list[Change]:
        """Return what else has changed that the model keeps or uses."""
        return self._state.changes()

    def has_drawn_elsewhere(self) -> bool:
        """Return whether the call has drawn from Python's stream, from NumPy's or the model's own, where nobody sees for what."""
        return not OtherStreams.now(self._module).are(self._other_random)

    def restore(self) -> None:
        """Undo what the call has done to the model, to what it uses, and to random streams.

        Raises
        ------
        CannotRestore
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
    """Return whether code that a call of `model` may come to, and is not PyTorch's own, has a word of writing into tensors."""
    return model_uses(model, _may_write, in_calls=True)


def _may_write(_code: object, names: set[str]) -> bool:
    return any(name in _WRITING or (name.endswith("_") and not name.startswith("_") and name != "requires_grad_") for name in names)


def statistics_of(module: nn.Module, *, per_rank: bool = False) -> tuple[str, ...]:
    """Return the names of buffers in which a layer of PyTorch's keeps statistics: of the batch anyway, or by wish of each part.

    A subclass with a ``forward`` of its own keeps what it likes there.
    """
    kept = _NormBase if per_rank else _BatchNorm
    if isinstance(module, kept) and str(getattr(type(module).forward, "__module__", "")).startswith("torch."):
        return "running_mean", "running_var", "num_batches_tracked"
    return ()


_WRITING = frozenset(("data", "detach", "inference_mode", "no_grad", "numpy", "set_grad_enabled"))
_ROOM = 1 << 28  # bytes of copies of parameters that nobody trains
