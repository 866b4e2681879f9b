"""The models of a run: what came from the notebook, what the cell has called, and what it has made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy

from ..module_tree import IdentityMap
from .watch import Watch, name_of_class
from .ways import Ways


@dataclass(slots=True)
class ModuleInfo:
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
    asked : set
        The calls, by what they were given, whose results have told what it returns.
    drawn_with : list, optional
        What it may draw with beside PyTorch's own generators; ``None``: nobody has asked.
    watch : Watch, optional
        Looks at what calls after the first change; ``None``: there was none yet.
    accepted : set
        What it changes without regard to its samples, as :meth:`Change.names` has it.
    marked : dict of bool to list of int
        Which of its arguments, counted as leaves, it lets require gradients (``x.requires_grad_()``), in training and in evaluation.
    writes_uncounted : bool
        Whether it writes to what it is given by ``x.data`` or ``x.numpy()``.
    ways : Ways
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
    writes_uncounted: bool = False
    ways: Ways = field(default_factory=Ways)


class KnownModels:
    """The modules of a run that have parameters, and what is known of each.

    Parameters
    ----------
    full_batch : iterable of str
        Classes of models that are known to be open, as `KeepsState` names them.
    """

    def __init__(self, full_batch: Iterable[str] = ()) -> None:
        self._full_batch = frozenset(full_batch)
        self._called: IdentityMap[ModuleInfo] = IdentityMap()
        self._made: IdentityMap[None] = IdentityMap()

    def __iter__(self) -> Iterator[nn.Module]:
        """Yield the models: those that came from the notebook, and those that the cell has called."""
        return (module for module, called in self.infos() if called.is_model)

    def of(self, module: nn.Module) -> ModuleInfo:
        """Return what is known of `module`."""
        return self._called.get(module) or self._called.set(module, ModuleInfo(is_open=name_of_class(module) in self._full_batch))

    def infos(self) -> Iterator[tuple[nn.Module, ModuleInfo]]:
        """Yield the modules of which something is known, with that."""
        return self._called.items()

    def note_made(self, module: nn.Module) -> None:
        """Note that the cell makes `module`."""
        self._made.set(module, None)

    def all(self) -> list[nn.Module]:
        """Return the models, and all modules that were made, with parts of them."""
        return [*self, *(module for module, _ in self._made.items())]

    def normalizing(self) -> list[nn.Module]:
        """Return the modules whose normalization layers may have been in use since it was last asked for their statistics."""
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
    """Return whether a module has parameters without a shape still, after one that is lazy itself has got them for these arguments."""
    if not any(map(is_lazy, chain(module.parameters(), module.buffers()))):
        return False
    if isinstance(module, LazyModuleMixin):
        module._infer_parameters(module, args, kwargs)  # as its hook would, but of the cell's random numbers
        return False
    return True
