"""Weak references, proxies and the containers that hold weakly: made anew to the same objects.

A proxy looks like what it stands for, to ``isinstance`` as well: so its type is asked for before anything else. What is referred to
goes along, and lives as long as the cell runs; where nothing but weak references leads to what a cell has made, it is gone at home as
it would be in one process.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from torch.utils.weak import WeakIdKeyDictionary, WeakIdRef

PROXIES = frozenset({weakref.ProxyType, weakref.CallableProxyType})
WEAK_MAPPINGS = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, WeakIdKeyDictionary)
_CONTAINERS = (*WEAK_MAPPINGS, weakref.WeakSet)
_CONTAINER_KINDS = frozenset(_CONTAINERS)
_KINDS = frozenset({weakref.ref, *PROXIES, *_CONTAINERS})
OWN = frozenset({"data", "_remove", "_pending_removals", "_iterating", "_dirty_len"})
"""Attributes that a weak container keeps for itself."""
_BOUND = ("__reduce_ex__", "__init__", "__sizeof__", "__dir__")  # methods that most objects have as they are: each knows whose it is


def is_weak(obj: object) -> bool:
    """Return whether `obj` is a weak reference, a proxy or a weak container."""
    return not _KINDS.isdisjoint(type(obj).__mro__)  # no `isinstance`: nearly every object is asked, and the containers are abstract ones


def is_weak_container(obj: object) -> bool:
    """Return whether `obj` is a container that holds weakly."""
    return not _CONTAINER_KINDS.isdisjoint(type(obj).__mro__)


def reduced_weak(obj: Any) -> Any:
    """Return how a weak reference, a proxy or a weak container reduces, ``NotImplemented`` for any other object."""
    kind: Any = type(obj)
    if kind in PROXIES:
        target = _target(obj)
        return NotImplemented if target is NotImplemented else (_proxy, target)
    if issubclass(kind, weakref.ref):
        return _reduced_reference(kind, obj)
    if is_weak_container(obj):
        more = {key: value for key, value in vars(obj).items() if key not in OWN}
        made_with = (obj.ref_type,) if issubclass(kind, WeakIdKeyDictionary) else ()
        return _container, (kind, *made_with), (items_of_weak(obj), more), None, None, _fill
    return NotImplemented


def items_of_weak(container: Any) -> list[Any]:
    """Return what a weak container holds: its keys and then its values, or its items."""
    if isinstance(container, WEAK_MAPPINGS):
        pairs = list(container.items())
        return [*(key for key, _ in pairs), *(value for _, value in pairs)]
    return list(container)


def refill(container: Any, items: list[Any]) -> None:
    """Let a weak container hold these `items`, as :func:`items_of_weak` returns them, and no others."""
    container.clear()
    if isinstance(container, WEAK_MAPPINGS):
        half = len(items) // 2
        for key, value in zip(items[:half], items[half:], strict=True):
            container[key] = value
    else:
        container.update(items)


def _reduced_reference(kind: Any, reference: Any) -> Any:
    target = reference()
    if kind is weakref.WeakMethod:
        return _method, () if target is None else (target,)
    if kind is not weakref.ref and kind is not WeakIdRef:
        return NotImplemented
    callback = reference.__callback__
    return _reference, (kind, target) if callback is None else (kind, target, callback)


def _target(proxy: Any) -> Any:
    """Return what `proxy` stands for in a tuple, an empty one where it is gone; ``NotImplemented`` where it hides it."""
    try:
        for name in _BOUND:
            target = getattr(getattr(proxy, name), "__self__", None)
            if any(reference is proxy for reference in _references_to(target)):
                return (target,)
    except ReferenceError:
        return ()
    return NotImplemented


def _references_to(target: Any) -> Iterator[Any]:
    try:
        yield from weakref.getweakrefs(target)
    except TypeError:  # there are none to such an object
        return


class _Gone:
    """Lives as long as it takes to refer to it."""

    def method(self) -> None:
        """Be what a reference to a method refers to."""


class _GoneProxy:
    """A proxy of what has gone, which everybody may ask for its class."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        raise ReferenceError("weakly-referenced object no longer exists")

    def __reduce__(self) -> Any:
        return _proxy, ()


def _proxy(target: Any = None) -> Any:
    return _GoneProxy() if target is None else weakref.proxy(target)


def _reference(kind: Any, target: Any, *callback: Any) -> Any:
    return kind(_Gone() if target is None else target, *callback)


def _method(target: Any = None) -> Any:
    return weakref.WeakMethod(_Gone().method if target is None else target)


def _container(kind: Any, *made_with: Any) -> Any:
    container = kind.__new__(kind)
    base: Any = next(base for base in _CONTAINERS if isinstance(container, base))
    base.__init__(container, *(({},) if base is WeakIdKeyDictionary else ()), **({"ref_type": made_with[0]} if made_with else {}))
    return container


def _fill(container: Any, state: tuple[list[Any], dict[str, Any]]) -> None:
    items, more = state
    vars(container).update(more)
    refill(container, items)
