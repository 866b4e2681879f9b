"""Dispatch an operation on global tensors to its rule, or run it on full tensors.

A rule gets the operands as the cell passed them and returns the cell's result. An operation without a rule, or with operands that its
rule does not cover, runs on full tensors: correct but slower. The run reports operations without a rule.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._ops import OpOverload

from ....capture.library_patches import original
from ....serialization.stand_ins import stands_for
from ..agreed import FailedOnShard, note, on_all_parts
from ..caught import may_be_caught
from ..placement_types import GlobalTensor, Partial, Shard
from ..redistribute import Exchange
from ..view_calls import have_one_memory, seen_through
from .kept_fulls import KeptFulls, base_of, counting_writes, origin_of, root_of
from .operands import NeedsFullTensor, changes_in_place, globals_in, has_graph, requires_grad, tensors_in

Rule = Callable[["Rules", Any, tuple[Any, ...], dict[str, Any]], Any]

_AUTOGRAD = torch._C.DispatchKey.AutogradFunctionality
_SHAPE = torch.Tensor.shape.__get__  # type: ignore[attr-defined]
_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})  # skips long lists of numbers without a loop in Python


@dataclass
class Rules(KeptFulls):
    """Runs operations on global tensors.

    Parameters
    ----------
    table : mapping
        The rule of each function that has one.
    exchange : Exchange
    rank, world_size : int
    on_whole : callable
        Called with the name of an operation that has no rule and runs on full tensors.
    """

    table: Mapping[Any, Rule]
    exchange: Exchange
    rank: int
    world_size: int
    on_whole: Callable[[str], None]
    refusing: Container[Any] = ()  # functions that raise for some values: a class out of range, a singular matrix
    gradient_scale: float = field(init=False)  # factor of the ranks' gradients within a backward pass
    read_gradients: list[tuple[torch.Tensor, Shard | Partial]] = field(default_factory=list)  # tensors whose `.grad` the cell has read
    retaining: list[weakref.ref[torch.Tensor]] = field(default_factory=list)  # replicated, computed from parameters
    without_ignored: dict[int, int] = field(default_factory=dict)  # by `ignore_index`: batches without an ignored target on any rank
    count_targets: bool = False  # in every batch, as an ignored target has occurred
    used: bool = False  # an operation or a model has got a global tensor
    on_parts: Container[Rule] = ()  # rules that also run on tensors sharded over all ranks of the run
    reshaping: Container[Any] = ()  # functions that change a tensor in place, but none of its values
    num_all: int = 0  # ranks of the run, if batches are sharded over fewer; else 0

    def __post_init__(self) -> None:
        self.is_first = self.rank == 0
        self.gradient_scale = float(self.world_size)  # `backward.gradient_sync` averages over ranks at the leaves

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `func` by its rule or on full tensors; called from ``__torch_function__``."""
        self.used = True
        may_be_read = False
        for arg in args:
            if type(arg) is GlobalTensor:
                if arg._state.full is not None or arg._state.origin is not None or arg._state.base is not None:
                    may_be_read = True
                    self.take_back_all((arg,), by_array=not _is_one_sample(func, args))
            elif type(arg) is list or type(arg) is tuple:
                self.take_back_all(arg)
        if self.viewed:  # `args` may share a storage with them
            self.viewed = [tensor for tensor in self.viewed if self.take_back(tensor)]
        if kwargs and kwargs.get("out") is not None:
            return self._into(func, args, kwargs)
        if self.transforms and inspect.unwrap(func) is inspect.unwrap(torch.autograd.grad):
            # The graph from before the transform consists of parts; within the transform the results must be full tensors.
            found = self.table[inspect.unwrap(func)](self, func, args, kwargs)
            return tuple(None if tensor is None else self.exchange.full_in_transform(tensor) for tensor in found)
        if self.transforms or (may_be_read and changes_in_place(func) and self.is_read(args[0]) and func not in self.reshaping):
            return self.on_wholes(func, args, kwargs)
        if (isinstance(func, OpOverload) or func == _SHAPE) and _below_autograd():
            return self.local(func, args, kwargs)  # a step of an operation that a rule runs, seen by a dispatch mode of the cell
        rule = self.table.get(func)
        if rule is None:  # `func` may be a replacement of PyTorch's function: look up the original
            func = inspect.unwrap(func) if func is torch.autograd.grad else original(func)
            func = stands_for(func) or func
            rule = self.table.get(func)
        if self.num_all and self._spans_all(args, kwargs) and (rule not in self.on_parts or has_graph(args, kwargs)):
            return self.on_wholes(func, args, kwargs)
        if rule is not None:
            try:
                run = partial(rule, self, func, args, kwargs)
                result = on_all_parts(run, NeedsFullTensor) if func in self.refusing and may_be_caught() else run()
                if self.viewed and changes_in_place(func):
                    self.bring_up_to_date()
                if result is next(iter(args), None):
                    return result
                return self.trace(result, func, args, kwargs) if isinstance(result, GlobalTensor | tuple | list) else result
            except (NeedsFullTensor, FailedOnShard):
                pass
            except Exception as error:
                note(error)
                raise
        else:
            self.on_whole(str(getattr(func, "__name__", None) or getattr(func, "name", func)))  # a scripted method has a name only
        return self.on_wholes(func, args, kwargs)

    def _spans_all(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Return whether an operand is sharded over all ranks of the run, and not only over those that batches are sharded over."""
        found = (tensor.placement for tensor in globals_in((*args, *kwargs.values())))
        return any(isinstance(placement, Shard) and len(placement.share.sizes) == self.num_all for placement in found)

    def local(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `func` on the ranks' parts."""
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    def full_tensor(self, value: Any) -> Any:
        """Return `value` with each global tensor in it replaced by its full tensor ``(B, …)``. A collective, unless all are cached."""
        if isinstance(value, GlobalTensor):
            return self._whole_tensor(value)
        if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            return value if _PLAIN.issuperset(map(type, value)) else type(value)(self.full_tensor(item) for item in value)
        if isinstance(value, dict):
            return {key: self.full_tensor(item) for key, item in value.items()}
        return value

    @counting_writes  # a cell may read a batch entry by entry: gather it once and cache it
    def _whole_tensor(self, tensor: GlobalTensor) -> torch.Tensor:
        version = self.version_to_keep(tensor)
        if version is None or not isinstance(tensor.placement, Shard):
            return self._whole_root(tensor, version)
        if requires_grad(tensor):
            base = base_of(tensor)
            seen = None if base is None else seen_through(self._whole_root(base.root, self.version_to_keep(base.root)), base.views)
            return self._whole_root(tensor, version) if seen is None else seen
        with temporarily_clear_interpreter_stack() if self.transforms else nullcontext():
            root, views = origin_of(tensor)
        whole = self._whole_root(root, self.version_to_keep(root))
        seen = seen_through(whole, views)
        if seen is not None:
            return seen
        tensor._state.origin = None
        return self._whole_tensor(tensor)

    def _whole_root(self, tensor: GlobalTensor, version: int | None) -> torch.Tensor:
        cached = tensor._state.full
        if cached is not None and cached.version == version and cached.tensor.requires_grad == requires_grad(tensor):
            return cached.tensor
        with temporarily_clear_interpreter_stack() if self.transforms else nullcontext():  # the transform is not to see the exchange
            result = self.exchange.full_tensor(tensor)
            if version is None or result.is_inference():
                return result
            if not requires_grad(tensor):
                result = result.detach()  # not a result of an autograd function: the cell may write tensors with a graph into it
                if cached is not None and cached.tensor.shape == result.shape and not cached.tensor.requires_grad:
                    result = cached.tensor.copy_(result)  # in place: the cell's arrays and samples are views of it
        self.keep(tensor, result)
        return result

    def refresh(self, tensor: GlobalTensor) -> None:
        """Update the cached full tensor of a shard whose part has changed. A collective, if the cell may hold arrays or views of it."""
        root = tensor if tensor._state.origin is None else tensor._state.origin.root
        if root._state.is_lent and root._state.full is not None:
            self._whole_root(root, self.version_to_keep(root))

    def read_value(self, tensor: GlobalTensor) -> torch.Tensor:
        """Return the full tensor of a shard, without its graph. Of a view only the view itself is gathered, unless its root is cached."""
        origin = tensor._state.origin
        is_alone = origin is not None and origin.views and not self.is_read(tensor)
        return (self.exchange.full_tensor(tensor) if is_alone else self._whole_tensor(tensor)).detach()

    @contextmanager
    def in_transform(self) -> Iterator[None]:
        """Run operations on full tensors within a ``torch.func`` transform, whose function may use a batch of the cell."""
        self.transforms += 1
        try:
            yield
        finally:
            self.transforms -= 1

    def _into(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `func` and write its result into ``out=``."""
        out = kwargs["out"]
        if isinstance(out, torch.Tensor) and not any(map(requires_grad, tensors_in((out, *args, *kwargs.values())))):
            rest = {key: value for key, value in kwargs.items() if key != "out"}
            result = self.dispatch(func, args, rest) if globals_in((*args, *rest.values())) else func(*args, **rest)
            if isinstance(result, torch.Tensor) and (result.shape, result.dtype) == (out.shape, out.dtype):
                return out.copy_(result)
        return self.on_wholes(func, args, kwargs)

    def on_wholes(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `func` on full tensors. If it writes in place or into ``out=``, each target's part is sliced from the full result."""
        target = args[0] if args else None
        if isinstance(target, GlobalTensor | list | tuple) and changes_in_place(func) and (targets := globals_in((target,))):
            wholes = {id(tensor): self._to_change(tensor) for tensor in targets}
            several = not isinstance(target, GlobalTensor)
            changed = [wholes.get(id(item), item) for item in target] if several else wholes[id(target)]
            result = func(changed, *self.full_tensor(args[1:]), **self.full_tensor(kwargs))
            for tensor in targets:
                self._take(tensor, wholes[id(tensor)])
            return target if result is changed else result
        into = globals_in((kwargs.get("out"),))
        wholes = {id(tensor): self._to_change(tensor) for tensor in into}
        given = self.full_tensor({key: value for key, value in kwargs.items() if not into or key != "out"})
        if into:
            out = kwargs["out"]
            given["out"] = wholes[id(out)] if isinstance(out, GlobalTensor) else type(out)(wholes.get(id(item), item) for item in out)
        result = func(*self.full_tensor(args), **given)
        for tensor in into:
            self._take(tensor, wholes[id(tensor)])
        self.lend(result, args)
        return kwargs["out"] if into else result

    def _to_change(self, tensor: GlobalTensor) -> torch.Tensor:
        whole = self._whole_tensor(tensor)
        kept = root_of(tensor)._state.full
        is_kept = kept is not None and have_one_memory(kept.tensor, whole)  # the cell's samples are views of it
        return whole if is_kept else whole.clone()

    def _take(self, tensor: GlobalTensor, changed: torch.Tensor) -> None:
        """Write the rank's part of the changed full tensor into `tensor`."""
        root = root_of(tensor)
        kept = root._state.full
        with torch._C.DisableTorchFunctionSubclass():
            tensor.copy_(self.part_of(changed, tensor.placement))
        if kept is not None and have_one_memory(kept.tensor, changed):
            self.keep_on(root)
        self.bring_up_to_date()


def _is_one_sample(func: Any, args: tuple[Any, ...]) -> bool:
    """Return whether `func` is indexing by an integer: a cell iterates over the samples of a batch in this way."""
    return func is torch.Tensor.__getitem__ and isinstance(args[1], int)


def _below_autograd() -> bool:
    return torch._C._dispatch_tls_is_dispatch_key_excluded(_AUTOGRAD) and not torch.is_inference_mode_enabled()
