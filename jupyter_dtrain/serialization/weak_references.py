"""Weak references, proxies and weak containers: recreated for the same objects.

A proxy looks like its target, also to ``isinstance``, so its type is checked first. Targets are sent along and live as long as the cell
runs. If only weak references lead to an object that the cell has made, it is gone at home, as it would be in one process.
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
"""Attributes that weak containers manage themselves."""
_BOUND = ("__reduce_ex__", "__init__", "__sizeof__", "__dir__")  # methods whose ``__self__`` reveals a proxy's target


def is_weak(obj: object) -> bool:
    """Return whether `obj` is a weak reference, a proxy or a weak container."""
    return not _KINDS.isdisjoint(type(obj).__mro__)  # `isinstance` is slow for abstract base classes


def is_weak_container(obj: object) -> bool:
    """Return whether `obj` is a weak container."""
    return not _CONTAINER_KINDS.isdisjoint(type(obj).__mro__)


def reduced_weak(obj: Any) -> Any:
    """Return the reduce value of a weak reference, proxy or weak container; ``NotImplemented`` for all else."""
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
    """Return the contents of a weak container: its keys and then its values, or its items."""
    if isinstance(container, WEAK_MAPPINGS):
        pairs = list(container.items())
        return [*(key for key, _ in pairs), *(value for _, value in pairs)]
    return list(container)


def refill(container: Any, items: list[Any]) -> None:
    """Replace the contents of a weak container by `items`, in the format of :func:`items_of_weak`."""
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
    """Return the target of `proxy` in a tuple, an empty one if it is gone; ``NotImplemented`` if it cannot be determined."""
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
    except TypeError:  # such objects cannot be weakly referenced
        return


class _Gone:
    """Short-lived target: a reference to it is dead at once."""

    def method(self) -> None:
        """Serve as the target of a `WeakMethod`."""


class _GoneProxy:
    """A proxy whose target is gone, and whose class can still be read."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        raise ReferenceError("weakly-referenced object no longer exists")

    def __reduce__(self) -> Any:
        return _proxy, ()


def is_gone_proxy(obj: object) -> bool:
    """Return whether `obj` is a proxy that came without its target: to ask it for any attribute is an error."""
    return type(obj) is _GoneProxy


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
