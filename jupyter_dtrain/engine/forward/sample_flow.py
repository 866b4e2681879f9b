"""Trace how a model combines samples: whether it computes a value from several samples (a statistic of the batch) and uses it.

Such a use need not show in the first batch: a ``forward`` may scale samples when the largest exceeds a bound, replace rare values by the
mean, or raise when a value is not finite. Therefore the operations of two calls on different numbers of samples are compared. A tensor
whose shape contains the number of samples differs in shape between the calls. A tensor computed from such tensors with equal shapes
in both calls is a statistic of all samples, or one sample picked out. If another operation uses it, or it is read as a number, samples may
depend on each other, in this batch or a later one. A branch that depends on samples reads such a number first, so branches that were not
taken are covered too. A size that depends on values (of ``x[x > 5]``) counts as such a number. If the two calls run different operations
(a loop over samples), samples are taken to depend on each other. Calls that train are not traced.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from types import FrameType, FunctionType
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ..rng.sampling_ops import kind_of
from ..tensor.function_bodies import BODIES
from .sample_order import Order, order_of

_READ, _SIZE = "a number", "a size"
"""Names for all operations that read a number or a size; what Python does with it cannot be traced."""
_reads = re.compile(
    "__(array|bool|complex|contains|dlpack|float|index|int)__|allclose|equal|is_nonzero|item|numpy|tolist|_local_scalar_dense"
).fullmatch
_SIZES = frozenset(("__len__", "nelement", "numel", "size"))
_selects = re.compile("argwhere|masked_select|nonzero|_?unique2?|unique_consecutive|unique_dim").fullmatch
"""Their result sizes depend on values, as do those of indexing with a boolean mask."""
_goes_along = re.compile(
    "__r?matmul__|bmm|cum(max|min|prod|sum)|einsum|flip|flipud|(log_)?softmax|logcumsumexp|matmul|mm|roll|searchsorted"
).fullmatch
"""Some of these mix samples and preserve their number, so their results are compared."""
_MOST = 1 << 16  # most elements of a result that is compared
_AUXILIARY = frozenset(("_pack_padded_sequence",))
"""Functions whose results without a samples dim only describe where samples lie in the other results."""
_WRITING = ("__set__", "__setitem__", "_foreach_")
_TRANSPARENT = ("_compile", "_dynamo", "_ops", "_tensor", "overrides", "utils._device", "utils._python_dispatch")


@dataclass(frozen=True, slots=True)
class _Seen:
    """Storage, offset, shape and strides of a tensor that an operation takes or returns, and whether it is boolean."""

    storage: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    of_truth: bool


@dataclass(frozen=True, slots=True)
class _Operation:
    name: str
    taken: tuple[_Seen, ...]
    made: tuple[_Seen, ...]
    result: torch.Tensor | None
    order: Order | None


class SampleFlow(AbstractContextManager["SampleFlow"]):
    """Records the operations of one call of a model.

    Parameters
    ----------
    samples : slice
        Range in the batch of the samples that the model is called on.
    """

    def __init__(self, samples: slice) -> None:
        self.samples, self.number = samples, samples.stop - samples.start
        self.operations: list[_Operation] = []
        self._storages: dict[int, Any] = {}  # by address; a weak reference prevents reuse of the address
        self._operations = _Operations(self)
        self._functions = _Functions(self, self._operations)

    def __enter__(self) -> SampleFlow:
        with ExitStack() as stack:
            stack.enter_context(self._operations)
            stack.enter_context(self._functions)
            self._modes = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._modes.__exit__(*error)
        self._storages = {}

    def note(self, name: str, taken: Any, made: Any = ()) -> None:
        """Record an operation with the tensors that it takes and returns."""
        compared = _goes_along(name) is not None and isinstance(made, torch.Tensor) and made.numel() <= _MOST
        result = made.detach().clone() if compared else None
        operation = _Operation(name, tuple(self._tensors(taken)), tuple(self._tensors(made)), result, order_of(name, taken, made))
        self.operations.append(operation)

    def _tensors(self, values: Any) -> Iterator[_Seen]:
        leaves = pytree.tree_leaves(values)
        bounds = [bound for leaf in leaves if isinstance(leaf, slice) for bound in (leaf.start, leaf.stop, leaf.step)]
        for leaf in (*leaves, *bounds):
            if isinstance(leaf, torch.Tensor):
                try:
                    storage = leaf.untyped_storage()
                    address, offset, strides = storage._cdata, int(leaf.storage_offset()), tuple(leaf.stride())
                    if address not in self._storages:
                        self._storages[address] = StorageWeakRef(storage)
                except (NotImplementedError, RuntimeError):  # sparse, nested
                    address, offset, strides = -id(leaf), 0, ()
                    self._storages[address] = leaf
                yield _Seen(address, offset, tuple(leaf.shape), strides, leaf.dtype == torch.bool)

    def mixes(self, other: SampleFlow, differs: Any) -> str | None:
        """Return a description of how a value computed from several samples is used; ``None`` if none is.

        Parameters
        ----------
        other : SampleFlow
            The recording of a call on another number of samples.
        differs : callable
            Returns whether a result has other values for some samples, given the result, its dim, both slices and the other results.
        """
        of_samples: set[int] = set()  # storages
        sized: dict[int, _Seen] = {}  # by storage: tensors whose first size depends on values
        statistics: dict[_Seen, str] = {}
        for mine, others in zip(self.operations, other.operations, strict=False):
            if mine.name != others.name or len(mine.taken) != len(others.taken) or len(mine.made) != len(others.made):
                return f"{mine.name} and {others.name}"
            of_samples.update(a.storage for a, b in zip(mine.taken, others.taken, strict=True) if a.shape != b.shape)
            from_samples = _by_values(mine.name) and any(seen.storage in of_samples for seen in mine.taken)
            by_size = [seen for seen in mine.taken if seen.storage in sized and seen.shape[:1] == sized[seen.storage].shape[:1]]
            used = next((seen for seen in mine.taken if seen in statistics), None)
            if (mine.name == _READ and from_samples) or (mine.name == _SIZE and by_size):
                return mine.name
            if used is not None and mine.name != _SIZE and _by_values(mine.name):
                return f"{statistics[used]}, by {mine.name}"
            selects = from_samples and _finds(mine)
            for a, b in zip(mine.made, others.made, strict=True):
                statistics.pop(a, None)
                if selects or any(seen.shape[:1] == a.shape[:1] for seen in by_size):
                    sized[a.storage] = a
                if a.shape != b.shape or selects:
                    of_samples.add(a.storage)
                elif from_samples and 0 not in a.shape and mine.name not in _AUXILIARY:
                    of_samples.add(a.storage)
                    statistics[a] = mine.name
            if self._apart(mine.result, others.result, other, differs):
                return f"the values of {mine.name}"
        return None if len(self.operations) == len(other.operations) else "the number of operations"

    def _apart(self, mine: torch.Tensor | None, others: torch.Tensor | None, other: SampleFlow, differs: Any) -> bool:
        if mine is None or others is None or mine.dim() != others.dim():
            return False
        if self.number > other.number:
            return other._apart(others, mine, self, differs)
        dims = [dim for dim, (a, b) in enumerate(zip(mine.shape, others.shape, strict=True)) if a != b]
        if len(dims) != 1 or (mine.shape[dims[0]], others.shape[dims[0]]) != (self.number, other.number):
            return False
        return bool(differs(others, dims[0], (other.samples, self.samples), (mine,)))


def _by_values(name: str) -> bool:
    """Return whether an operation uses the values of its inputs, and not only their shapes."""
    return not (name.endswith("_like") or name.startswith("new_"))


def _finds(operation: _Operation) -> bool:
    by_index = operation.name in ("__getitem__", "index") and any(seen.of_truth for seen in operation.taken[1:])
    return by_index or bool(_selects(operation.name)) or (operation.name == "where" and len(operation.taken) == 1)


class _Operations(TorchDispatchMode):
    """Records operations of scripted code, and those inside PyTorch's Python functions, which :class:`_Functions` calls unrecorded."""

    def __init__(self, flow: SampleFlow) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flow = flow
        self.is_noted = False

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not self.is_noted:
            name = func._schema.name.partition("::")[2]
            if not _reads(name):
                self.flow.note(name, (args, kwargs), result)
            elif not _is_torch_reading():
                self.flow.note(_READ, (args, kwargs))
        return result


class _Functions(TorchFunctionMode):
    """Records functions that a model calls, since the operations below them may depend on the memory layout of tensors."""

    def __init__(self, flow: SampleFlow, operations: _Operations) -> None:
        super().__init__()
        self.flow, self.operations = flow, operations

    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in BODIES:
            with self:
                return BODIES[func](*args, **kwargs)
        operations, name = self.operations, getattr(func, "__name__", "")
        reads, sizes = _reads(name) is not None, name in _SIZES
        in_python = isinstance(func, FunctionType) and not (reads or sizes) and kind_of(func, args) is None
        # Within `vmap` a tensor hides its samples dim; the operations below show it.
        if operations.is_noted or torch._C._functorch.maybe_current_level() is not None or in_python:
            return func(*args, **kwargs)
        operations.is_noted = True
        try:
            result = func(*args, **kwargs)
        finally:
            operations.is_noted = False
        if reads or sizes or isinstance(result, torch.Size):
            if not _is_torch_reading():
                self.flow.note(_READ if reads else _SIZE, (args, kwargs))
        elif func is torch.nn.functional.one_hot and (kwargs.get("num_classes", -1) if len(args) < 2 else args[1]) == -1:
            self.flow.note(_READ, (args, kwargs))  # the largest class of all samples is the size of the result
            self.flow.note(name, (args, kwargs), result)
        elif name.startswith(_WRITING):
            self.flow.note(name, (args, kwargs), args[0])
        elif any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(result)):
            self.flow.note(name, (args, kwargs), result)
        return result


def _is_torch_reading() -> bool:
    """Return whether PyTorch's own code reads the number: to check arguments, or to choose among equivalent implementations."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        package, _, module = frame.f_globals.get("__name__", "").partition(".")
        if package != "jupyter_dtrain" and not (package == "torch" and module.startswith(_TRANSPARENT)):
            return bool(package == "torch")
        frame = frame.f_back
    return False
