"""Pickle a cell's results: each changed object as a separate graph, and tensors that span the ranks as full tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from ..capture.library_patches import patches
from ..serialization.copy_restore import Contents
from ..serialization.cut_graphs import without_graph
from ..serialization.leaves import Numbers
from ..serialization.pickler import Packer
from ..serialization.progress_bars import bar_at_rest, is_progress_bar
from ..serialization.torch_reducers import with_gradient
from .tensor.graph_placement import computed_by
from .tensor.placement_types import GlobalTensor
from .tensor.tensor_type import tensor_type


@dataclass(frozen=True)
class Changes:
    """Changes that the cell made to existing objects and names.

    Attributes
    ----------
    changed : dict of int to Contents
        New contents of tracked objects, by index.
    deleted : list of str
        Names that the cell deleted.
    """

    changed: dict[int, Contents]
    deleted: list[str]


@dataclass(frozen=True)
class Head:
    """The first graph of a cell's results, which can always be read. Each later graph is separate, as a reader may fail to unpickle it.

    Attributes
    ----------
    changes : Changes
        Changes of tensors' values, and deleted names.
    others : list of int
        Indices of the other changed objects, whose contents come next.
    names : list of str
        Names that the cell bound. Their values come after `modules`, then states of libraries, then the value of the cell's last line.
    modules : tuple of str
        Modules beside the notebook that the cell was the first to import: each comes, after `others`, with its patches of libraries.
    """

    changes: Changes
    others: list[int]
    names: list[str]
    modules: tuple[str, ...] = ()


def graphs_of(
    changes: Changes, bound: Mapping[str, Any], value: object, states: Sequence[object], modules: Sequence[ModuleType] = ()
) -> Iterator[object]:
    """Yield a :class:`Head` and the graphs after it."""
    certain = {index: new for index, new in changes.changed.items() if isinstance(new.items, Numbers) and not new.attributes}
    others = [index for index in changes.changed if index not in certain]
    yield Head(Changes(certain, changes.deleted), others, list(bound), tuple(module.__name__ for module in modules))
    yield from (changes.changed[index] for index in others)
    yield from ((module, patches({}, [module])) for module in modules)
    yield from bound.values()
    yield tuple(states)
    yield value


class SpanningTensors:
    """Collects the tensors that span the ranks, in the order of packing."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self._noted: set[int] = set()

    def note(self, tensor: torch.Tensor) -> torch.Tensor:
        """Record a tensor once, and return a placeholder. Packing is repeated if memory is shared."""
        if id(tensor) not in self._noted:
            self._noted.add(id(tensor))
            self.tensors.append(tensor)
        return torch.empty(0, dtype=tensor.dtype, device="cpu")

    def filled(self, wholes: Sequence[torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return a function that replaces each recorded tensor by its full tensor."""
        found = {id(tensor): whole for tensor, whole in zip(self.tensors, wholes, strict=True)}
        return lambda tensor: found[id(tensor)]


class ResultPacker(Packer):
    """Packs tensors that span the ranks as full tensors by `whole`, the same on all ranks; for results sent home `whole` is ``None``."""

    def __init__(self, *, whole: Callable[[Any], Any] | None, **options: Any) -> None:
        super().__init__(**options)
        self._whole = whole

    def reducer_override(self, obj: Any) -> Any:
        """Return how `obj` is pickled."""
        if self._whole is not None and isinstance(obj, GlobalTensor):
            tensor = self._whole(obj).detach()
            gradient = obj.grad if obj.is_leaf or obj.retains_grad else None
            if obj.grad_fn is not None:
                return without_graph, (tensor, gradient, computed_by(obj.grad_fn))
            return with_gradient, (tensor.requires_grad_(obj.requires_grad and obj.dtype.is_floating_point), gradient)
        if self._whole is None and isinstance(obj, GlobalTensor):  # the cell did not end by itself
            raise TypeError("an engine has only its shard of a sharded batch")
        if obj is GlobalTensor:
            return tensor_type, ()
        if is_progress_bar(obj):
            if self._whole is not None:  # in a snapshot
                raise TypeError(f"cannot pickle {type(obj).__name__!r} object: a progress bar has to be made again")
            return bar_at_rest(obj)
        return super().reducer_override(obj)
