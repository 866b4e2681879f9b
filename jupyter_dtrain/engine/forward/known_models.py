"""The models of a run: those from the notebook, those that the cell has called, and those that the cell has made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy

from ..found_late import name_of_class
from ..identity_map import IdentityMap
from .code_changes import CodeChanges
from .paths_taken import PathsTaken
from .watch import Watch
from .ways import Ways


@dataclass(slots=True)
class ModuleInfo:
    """What is known of a module that the cell calls.

    Attributes
    ----------
    is_model : bool, optional
        Whether it has parameters; ``None``: not yet determined.
    is_lazy : bool
        Whether it may still have parameters without a shape (``nn.LazyLinear``).
    is_open : bool
        Whether its ``forward`` runs on the full batch.
    takes_batch_for_sequence : bool
        Whether it is one of PyTorch's sequence layers run along the batch, or gave other results on shares: it needs the full batch.
    num_hooks : int
        Number of hooks registered when the module was last searched for hooks.
    normalizes : bool
        Whether its normalization statistics may have changed since they were last collected.
    results : dict
        The batch dims in its results.
    asked : set
        Calls, by their arguments, whose results have been used to learn `results`.
    drawn_with : list, optional
        Generators that it may use besides PyTorch's own; ``None``: not yet determined.
    watch : Watch, optional
        Detects state changes in later calls; ``None`` until the first of these.
    accepted : set
        What it changes independently of its samples, as :meth:`Change.names` returns it.
    marked : dict of bool to list of int
        In training and in evaluation: indices of argument leaves that it lets require gradients (``x.requires_grad_()``).
    bends : bool
        A backward pass of its own functions is not linear.
    writes_uncounted : bool
        Whether it writes to its inputs by ``x.data`` or ``x.numpy()``.
    ways : Ways
    paths : PathsTaken
    changes : CodeChanges
    largest : int
        Bits of the number of samples in its largest batch.
    has_learned : bool
        Whether its last call was only made to learn from.
    """

    is_model: bool | None = None
    is_lazy: bool = True
    is_open: bool = False
    takes_batch_for_sequence: bool = False
    num_hooks: int = -1
    normalizes: bool = False
    results: dict[Any, Any] = field(default_factory=dict)
    asked: set[Any] = field(default_factory=set)
    drawn_with: list[Any] | None = None
    watch: Watch | None = None
    accepted: set[tuple[int, Any]] = field(default_factory=set)
    marked: dict[bool, list[int]] = field(default_factory=dict)
    bends: bool = False
    writes_uncounted: bool = False
    ways: Ways = field(default_factory=Ways)
    paths: PathsTaken = field(default_factory=PathsTaken)
    changes: CodeChanges = field(default_factory=CodeChanges)
    largest: int = 0
    has_learned: bool = False


class KnownModels:
    """The modules of a run that have parameters, with what is known of each.

    Parameters
    ----------
    full_batch : iterable of str
        Classes of open models, as `FoundLate` names them.
    """

    def __init__(self, full_batch: Iterable[str] = ()) -> None:
        self._full_batch = frozenset(full_batch)
        self._called: IdentityMap[ModuleInfo] = IdentityMap()
        self._made: IdentityMap[None] = IdentityMap()

    def __iter__(self) -> Iterator[nn.Module]:
        """Yield the models that came from the notebook or were called by the cell."""
        return (module for module, called in self.infos() if called.is_model)

    def of(self, module: nn.Module) -> ModuleInfo:
        """Return what is known of `module`."""
        return self._called.get(module) or self._called.set(module, ModuleInfo(is_open=name_of_class(module) in self._full_batch))

    def infos(self) -> Iterator[tuple[nn.Module, ModuleInfo]]:
        """Yield each known module with its `ModuleInfo`."""
        return self._called.items()

    def note_made(self, module: nn.Module) -> None:
        """Record that the cell makes `module`."""
        self._made.set(module, None)

    def all(self) -> list[nn.Module]:
        """Return the models, and all modules made by the cell, including submodules."""
        return [*self, *(module for module, _ in self._made.items())]

    def normalizing(self) -> list[nn.Module]:
        """Return the modules whose normalization layers may have run since their statistics were last collected."""
        return [module for module, called in self.infos() if called.normalizes]

    def has_any(self) -> bool:
        """Return whether there is a module with parameters."""
        made = (next(iter(module.parameters()), None) is not None for module, _ in self._made.items())
        return next(iter(self), None) is not None or any(made)

    def any_training(self) -> bool:
        """Return whether a module with trainable parameters is in training mode."""
        return any(module.training and any(p.requires_grad for p in module.parameters()) for module in self.all())

    def training(self) -> bool:
        """Return whether gradients are on and a module with trainable parameters is in training mode."""
        return torch.is_grad_enabled() and self.any_training()


def stays_lazy(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether `module` still has parameters without a shape; initializes those of a module that is lazy itself."""
    if not any(map(is_lazy, chain(module.parameters(), module.buffers()))):
        return False
    if isinstance(module, LazyModuleMixin):
        module._infer_parameters(module, args, kwargs)  # as its hook would, but drawing from the cell's random stream
        return False
    return True
