"""Registries of PyTorch that are open to all: of the many entries those are sent that the notebook or the cell has made."""

from __future__ import annotations

import sys
from collections.abc import Container, Iterator
from typing import Any

from .global_hooks import own_hooks
from .library_changes import Place, is_the_notebooks

SAFE_GLOBALS: Place = ("torch._weights_only_unpickler", "", "_marked_safe_globals_set")
_BY_KEYS: tuple[Place, ...] = (("torch.distributions.kl", "", "_KL_REGISTRY"), ("torch.utils._pytree", "", "SUPPORTED_NODES"))
OPEN_TO_ALL = frozenset({*_BY_KEYS, SAFE_GLOBALS})


def own_entries(also: Container[Place]) -> Iterator[tuple[Place, Any]]:
    """Yield the places with entries of the notebook or the cell, and these; of the places `also` even those without one."""
    for place in _BY_KEYS:
        registry = getattr(sys.modules.get(place[0]), place[2], {})
        own = {key: value for key, value in registry.items() if any(map(is_the_notebooks, key if isinstance(key, tuple) else (key,)))}
        if own:
            yield place, own
    allowed = _not_pytorchs(getattr(sys.modules.get(SAFE_GLOBALS[0]), SAFE_GLOBALS[2], set()))
    if allowed or SAFE_GLOBALS in also:
        yield SAFE_GLOBALS, allowed
    yield from own_hooks()


def put_entries(owner: Any, registry: Any, held: Any) -> None:
    """Put `held` into a `registry` of `owner`."""
    if isinstance(registry, set):  # `clear_safe_globals` in the cell has removed others
        registry -= _not_pytorchs(registry)
    registry.update(held)
    getattr(owner, "_KL_MEMOIZE", {}).clear()  # lookups that were cached without the entries


def _not_pytorchs(allowed: set[Any]) -> set[Any]:
    """Return what `torch.load` may read besides what PyTorch itself has entered: classes, functions, or each with a name."""
    modules = ((entry, str(getattr(entry[0] if isinstance(entry, tuple) else entry, "__module__", ""))) for entry in allowed)
    return {entry for entry, module in modules if module.partition(".")[0] != "torch"}
