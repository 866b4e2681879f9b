"""Where an operation on global tensors goes: to its rule, or to whole tensors.

Each rule gets operands as the cell passed them and returns what the cell gets. An operation without a rule is computed on
whole tensors: always right, at worst slower, and the run says so.
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
from .kept_fulls import KeptFulls, base_of, origin_of, root_of
from .operands import NeedsFullTensor, changes_in_place, globals_in, has_graph, requires_grad, tensors_in

Rule = Callable[["Rules", Any, tuple[Any, ...], dict[str, Any]], Any]

_AUTOGRAD = torch._C.DispatchKey.AutogradFunctionality
_SHAPE = torch.Tensor.shape.__get__  # type: ignore[attr-defined]
_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})  # a list of a million numbers is not walked through in Python


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
        Told the name of an operation that had no rule and was computed on whole tensors.
    """

    table: Mapping[Any, Rule]
    exchange: Exchange
    rank: int
    world_size: int
    on_whole: Callable[[str], None]
    refusing: Container[Any] = ()  # functions that refuse some values: a class that there is not, a matrix without an inverse
    gradient_scale: float = field(init=False)  # of the ranks' parts of gradients that are on their way
    read_gradients: list[tuple[torch.Tensor, Shard | Partial]] = field(default_factory=list)  # whose tensors hold what the cell has read
    retaining: list[weakref.ref[torch.Tensor]] = field(default_factory=list)  # what all ranks have, made of parameters
    without_ignored: dict[int, int] = field(default_factory=dict)  # batches of targets in which no rank had one of an ignored class
    count_targets: bool = False  # in every batch: one has come that is ignored
    used: bool = False  # an operation, or a model, has been given a part of something
    on_parts: Container[Rule] = ()  # rules that exchange nothing
    reshaping: Container[Any] = ()  # functions that change a tensor in place, and none of its numbers
    num_all: int = 0  # ranks of the run, where batches are sharded over fewer: what spans all of them has no other rules

    def __post_init__(self) -> None:
        self.is_first = self.rank == 0
        self.gradient_scale = float(self.world_size)  # `gradients` averages over ranks at the end

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `func`; the entry for ``__torch_function__``."""
        self.used = True
        may_be_read = False
        for arg in args:
            if type(arg) is GlobalTensor:
                if arg._state.full is not None or arg._state.origin is not None or arg._state.base is not None:
                    may_be_read = True
                    self.take_back_all((arg,), by_array=not _is_one_sample(func, args))
            elif type(arg) is list or type(arg) is tuple:
                self.take_back_all(arg)
        if self.viewed:  # `args` may be others that share memory with them
            self.viewed = [tensor for tensor in self.viewed if self.take_back(tensor)]
        if kwargs and kwargs.get("out") is not None:
            return self._into(func, args, kwargs)
        if self.transforms and inspect.unwrap(func) is inspect.unwrap(torch.autograd.grad):
            # Of what was computed before the transform, from parts; and what follows is computed on wholes.
            found = self.table[inspect.unwrap(func)](self, func, args, kwargs)
            return tuple(None if tensor is None else self.exchange.full_in_transform(tensor) for tensor in found)
        if self.transforms or (may_be_read and changes_in_place(func) and self.is_read(args[0]) and func not in self.reshaping):
            return self.on_wholes(func, args, kwargs)
        if (isinstance(func, OpOverload) or func == _SHAPE) and _below_autograd():
            return self.local(func, args, kwargs)  # a mode of the cell's sees, below autograd, the steps of what a rule has begun
        rule = self.table.get(func)
        if rule is None:  # under the name by which it announces itself stands what takes its place
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
        """Return whether one of the operands has a part on each rank of the run, and not on those alone that batches are sharded over."""
        found = (tensor.placement for tensor in globals_in((*args, *kwargs.values())))
        return any(isinstance(placement, Shard) and len(placement.share.sizes) == self.num_all for placement in found)

    def local(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `func` on parts."""
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    def full_tensor(self, value: Any) -> Any:
        """Return `value` with the global tensors in it whole, ``(B, …)`` each. A collective, unless all are known."""
        if isinstance(value, GlobalTensor):
            return self._whole_tensor(value)
        if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            return value if _PLAIN.issuperset(map(type, value)) else type(value)(self.full_tensor(item) for item in value)
        if isinstance(value, dict):
            return {key: self.full_tensor(item) for key, item in value.items()}
        return value

    def _whole_tensor(self, tensor: GlobalTensor) -> torch.Tensor:
        # A cell that walks through a batch reads it entry by entry: exchange it once.
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
        with temporarily_clear_interpreter_stack() if self.transforms else nullcontext():  # an exchange is not what is transformed
            result = self.exchange.full_tensor(tensor)
            if version is None or result.is_inference():
                return result
            if not requires_grad(tensor):
                result = result.detach()  # not what an autograd function has made: the cell may write into it what has a graph
                if cached is not None and cached.tensor.shape == result.shape and not cached.tensor.requires_grad:
                    result = cached.tensor.copy_(result)  # arrays and samples of it are to change with it
        self.keep(tensor, result)
        return result

    def refresh(self, tensor: GlobalTensor) -> None:
        """Let what the cell has of the whole of a shard be what its part is now. A collective, if the cell has some."""
        root = tensor if tensor._state.origin is None else tensor._state.origin.root
        if root._state.is_lent and root._state.full is not None:
            self._whole_root(root, self.version_to_keep(root))

    def read_value(self, tensor: GlobalTensor) -> torch.Tensor:
        """Return the whole of a shard for its numbers, without its graph: of a view alone, unless its root was read."""
        origin = tensor._state.origin
        is_alone = origin is not None and origin.views and not self.is_read(tensor)
        return (self.exchange.full_tensor(tensor) if is_alone else self._whole_tensor(tensor)).detach()

    @contextmanager
    def in_transform(self) -> Iterator[None]:
        """Compute on whole tensors: a transform of torch.func is given a function that may know a batch."""
        self.transforms += 1
        try:
            yield
        finally:
            self.transforms -= 1

    def _into(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `func` with ``out=``: what it comes to is written there."""
        out = kwargs["out"]
        if isinstance(out, torch.Tensor) and not any(map(requires_grad, tensors_in((out, *args, *kwargs.values())))):
            rest = {key: value for key, value in kwargs.items() if key != "out"}
            result = self.dispatch(func, args, rest) if globals_in((*args, *rest.values())) else func(*args, **rest)
            if isinstance(result, torch.Tensor) and (result.shape, result.dtype) == (out.shape, out.dtype):
                return out.copy_(result)
        return self.on_wholes(func, args, kwargs)

    def on_wholes(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `func` on whole tensors. In place, the part of each target is taken from the whole result."""
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
        is_kept = kept is not None and have_one_memory(kept.tensor, whole)  # samples that the cell has taken are views of it
        return whole if is_kept else whole.clone()

    def _take(self, tensor: GlobalTensor, changed: torch.Tensor) -> None:
        """Let `tensor` be what has become of its whole."""
        root = root_of(tensor)
        kept = root._state.full
        with torch._C.DisableTorchFunctionSubclass():
            tensor.copy_(self.part_of(changed, tensor.placement))
        if kept is not None and have_one_memory(kept.tensor, changed):
            self.keep_on(root)
        self.bring_up_to_date()


def _is_one_sample(func: Any, args: tuple[Any, ...]) -> bool:
    """Return whether a sample is asked for, which is one of the full tensor: a cell walks through a batch so."""
    return func is torch.Tensor.__getitem__ and isinstance(args[1], int)


def _below_autograd() -> bool:
    return torch._C._dispatch_tls_is_dispatch_key_excluded(_AUTOGRAD) and not torch.is_inference_mode_enabled()
