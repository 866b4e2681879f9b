"""How results are pickled: what the cell has changed as graphs of their own, and tensors that span the ranks as full ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..serialization.copy_restore import Contents
from ..serialization.leaves import Numbers
from ..serialization.module_reducers import itself
from ..serialization.pickler import Packer
from ..serialization.progress_bars import bar_at_rest, is_progress_bar
from ..serialization.torch_reducers import without_graph
from .tensor.graph_placement import computed_by
from .tensor.placement_types import GlobalTensor


@dataclass(frozen=True)
class Changes:
    """What the cell did to what was there.

    Attributes
    ----------
    changed : dict of int to Contents
        New contents of tracked objects, by their index.
    deleted : list of str
        Names that the cell deleted.
    """

    changed: dict[int, Contents]
    deleted: list[str]


@dataclass(frozen=True)
class Head:
    """What the cell did that is read for certain, and what comes behind it: a graph each, as no other process may be able to make one.

    Attributes
    ----------
    changes : Changes
        To the numbers of tensors.
    others : list of int
        Indices of the other tracked objects that have new contents; these come first.
    names : list of str
        Names that the cell bound; their values come behind those, then states of libraries, and then the value of the cell's last line.
    """

    changes: Changes
    others: list[int]
    names: list[str]


def graphs_of(changes: Changes, bound: Mapping[str, Any], value: object, states: Sequence[object]) -> Iterator[object]:
    """Return a :class:`Head` and what comes behind it."""
    certain = {index: new for index, new in changes.changed.items() if isinstance(new.items, Numbers) and not new.attributes}
    others = [index for index in changes.changed if index not in certain]
    yield Head(Changes(certain, changes.deleted), others, list(bound))
    yield from (changes.changed[index] for index in others)
    yield from bound.values()
    yield tuple(states)
    yield value


class SpanningTensors:
    """The tensors that span the ranks in what is packed, in the order in which they come."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self._noted: set[int] = set()

    def note(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note one; return what stands for it. What shares memory is packed, and so noted, a second time."""
        if id(tensor) not in self._noted:
            self._noted.add(id(tensor))
            self.tensors.append(tensor)
        return torch.empty(0, dtype=tensor.dtype)

    def filled(self, wholes: Sequence[torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return what gives each of them as a whole."""
        found = {id(tensor): whole for tensor, whole in zip(self.tensors, wholes, strict=True)}
        return lambda tensor: found[id(tensor)]


class ResultPacker(Packer):
    """Writes tensors that span the ranks as a whole, the same on all ranks; `whole` is ``None`` for what goes home."""

    def __init__(self, *, whole: Callable[[Any], Any] | None, **options: Any) -> None:
        super().__init__(**options)
        self._whole = whole

    def reducer_override(self, obj: Any) -> Any:
        """Return how `obj` is written."""
        if self._whole is not None and isinstance(obj, GlobalTensor):
            tensor = self._whole(obj).detach()
            if obj.grad_fn is not None:
                return without_graph, (tensor, None, computed_by(obj.grad_fn))
            return itself, (tensor.requires_grad_(obj.requires_grad and obj.dtype.is_floating_point),)
        if self._whole is None and isinstance(obj, GlobalTensor):  # where a cell has come to no end of its own
            raise TypeError("an engine has only its shard of a sharded batch")
        if is_progress_bar(obj):
            if self._whole is not None:  # in a snapshot
                raise TypeError(f"cannot pickle {type(obj).__name__!r} object: a progress bar has to be made again")
            return bar_at_rest(obj)
        return super().reducer_override(obj)
