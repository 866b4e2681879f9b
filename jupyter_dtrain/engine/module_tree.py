"""Fast versions of ``nn.Module.modules()`` and ``parameters()``, and what is derived from them.

The originals build names in nested generators and take ten times as long. They are needed in every step, and a small model's step takes
milliseconds. A class that overrides them is asked instead.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, TypeVar

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import register_module_module_registration_hook, register_module_parameter_registration_hook

from .identity_map import IdentityMap

T = TypeVar("T")

_named_modules, _modules = nn.Module.named_modules, nn.Module.modules
_named_parameters, _parameters = nn.Module.named_parameters, nn.Module.parameters


def modules_in(module: nn.Module) -> list[nn.Module]:
    """Return ``module.modules()``."""
    if type(module).modules is not _modules:
        return list(module.modules())
    found: dict[int, nn.Module] = {}
    _collect(module, found)
    return list(found.values())


def parameters_in(module: nn.Module) -> list[nn.Parameter]:
    """Return ``module.parameters()``."""
    kind = type(module)
    if kind.parameters is not _parameters or kind.named_parameters is not _named_parameters:
        return list(module.parameters())
    # Like `named_parameters`, collect from all modules without calling their own `parameters`.
    found = {id(p): p for part in modules_in(module) for p in part._parameters.values() if p is not None}
    return list(found.values())


class Found(Generic[T]):
    """Caches search results for modules until a module or parameter is registered anywhere.

    Parameters
    ----------
    find : callable
        Searches a module.
    """

    def __init__(self, find: Callable[[nn.Module], Iterable[T]]) -> None:
        self._find = find
        self._found: IdentityMap[tuple[int, list[weakref.ref[T]]]] = IdentityMap()

    def of(self, module: nn.Module) -> list[T]:
        """Return the search result for `module`."""
        known = self._found.get(module)
        if known is not None and known[0] == _num_registered:
            return [part for reference in known[1] if (part := reference()) is not None]
        found = list(self._find(module))
        if _num_registered is not None:
            self._found.set(module, (_num_registered, [weakref.ref(part) for part in found]))
        return found


_num_registered: int | None = None  # number of registrations, while they are counted


@contextmanager
def registrations_counted() -> Iterator[None]:
    """Count registrations, which enables the cache of :class:`Found`, until the end of the ``with`` block."""
    global _num_registered
    _num_registered = 0
    handles = [
        register(_registered) for register in (register_module_module_registration_hook, register_module_parameter_registration_hook)
    ]
    try:
        yield
    finally:
        _num_registered = None
        for handle in handles:
            handle.remove()


def num_registered() -> int | None:
    """Return the number of modules and parameters registered so far; ``None`` if they are not counted."""
    return _num_registered


def _registered(*_: object) -> None:
    global _num_registered
    if _num_registered is not None:
        _num_registered += 1


def layers_taking_statistics(module: nn.Module) -> list[_BatchNorm]:
    """Return the BatchNorm layers in `module` that currently compute statistics of the batch."""
    return [layer for layer in modules_in(module) if isinstance(layer, _BatchNorm) and layer.training]


OF_ALL_MODULES = (
    *(nn.modules.module._global_forward_hooks, nn.modules.module._global_forward_pre_hooks),
    *(nn.modules.module._global_backward_hooks, nn.modules.module._global_backward_pre_hooks),
)
"""Hooks registered for all modules."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def has_hooks(module: nn.Module) -> bool:
    """Return whether `module` has hooks other than PyTorch's own (those of ``prune``, which compute its parameters)."""
    own = (hook for part in modules_in(module) for name in _HOOKS for hook in part.__dict__.get(name, {}).values())
    hooks = (*own, *(hook for registered in OF_ALL_MODULES for hook in registered.values()))
    return not hasattr(module, "_orig_mod") and any(not _module_of(hook).startswith("torch.") for hook in hooks)


def _module_of(hook: Callable[..., Any]) -> str:
    return str((hook.func if isinstance(hook, partial) else hook).__module__)


def _collect(module: nn.Module, found: dict[int, nn.Module]) -> None:
    if id(module) in found:
        return
    if type(module).named_modules is not _named_modules:
        for _, part in module.named_modules():
            found.setdefault(id(part), part)
        return
    found[id(module)] = module
    for child in module._modules.values():
        if child is not None:
            _collect(child, found)


def outermost(objects: Iterable[object]) -> list[nn.Module]:
    """Return the modules with parameters among `objects` that are not part of another one."""
    modules = [obj for obj in objects if isinstance(obj, nn.Module) and next(iter(obj.parameters()), None) is not None]
    inner = {id(child) for module in modules for child in module.modules() if child is not module}
    return [module for module in modules if id(module) not in inner]
