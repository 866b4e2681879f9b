"""Fill the reader's own library objects with the contents that :mod:`.library_objects` has written.

An object with unpicklable contents of another kind than the writer's (a connection that was opened, say) is left as it is, and a message
says so. After the cell, all objects get their earlier contents back.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

from .library_changes import Place
from .library_kinds import CONTAINERS, OF_EACH_PROCESS, attributes_in, is_plain, name_of
from .library_objects import BASES, Held, Path
from .library_state import is_apart, owner_of
from .python_reducers import slots_of

_MISSING = object()


class Placing:
    """The library objects of this process that a stream refers to. They are filled once all are found."""

    def __init__(self) -> None:
        self._found: dict[tuple[Place, Path], Any] = {}
        self._taken: set[int] = set()
        self._to_fill: dict[tuple[Place, Path], tuple[bool, Held]] = {}

    def object_at(self, place: Place, path: Path, kind: Any, extra: Any, *held: Any) -> Any:
        """Return the library's object at this place, or a new one if it has none or one of another type."""
        key = place, path
        if key not in self._found:
            obj = None if is_apart() else _followed(place, path)
            is_new = type(obj) is not kind or id(obj) in self._taken
            if is_new:
                obj = _made(kind, extra)
            else:
                _remember(obj)
            self._found[key] = obj
            self._taken.add(id(obj))
            self._to_fill[key] = is_new, Held(*held)
        return self._found[key]

    def fill(self) -> None:
        """Write the contents of all objects found since the last call."""
        while self._to_fill:
            key, (is_new, held) = self._to_fill.popitem()
            _fill(*key, self._found[key], held, is_new=is_new)


def _followed(place: Place, path: Path) -> Any:
    found: Any = getattr(owner_of(place), "__dict__", {}).get(place[2])
    for kind, step in path:
        if kind == "attribute":
            found = attributes_in(found).get(step)
        elif issubclass(type(found), dict):
            found = dict.get(found, step)
        elif issubclass(type(found), list | tuple | deque):
            found = found[step] if step < len(found) else None
        else:
            return None
    return found


def _made(kind: Any, extra: Any) -> Any:
    if kind in CONTAINERS:
        return kind(extra) if kind is defaultdict else kind((), extra) if kind is deque else kind()
    base: Any = next((base for base in (*BASES, SimpleNamespace) if issubclass(kind, base)), object)
    return base.__new__(kind)


def _fill(place: Place, path: Path, obj: Any, held: Held, *, is_new: bool = False) -> None:
    now = attributes_in(obj)
    changed = {name: value for name, value in held.attributes.items() if not _is_same(now.get(name, _MISSING), value)}
    gone = [name for name in now if name not in held.attributes and name not in held.others]
    if (
        (changed or gone)
        and not is_apart()
        and (others := [name for name, kind in held.others.items() if kind and _kind_in(now, name) != kind])
    ):
        _told.append((_called(place, path), ", ".join((*changed, *gone)), ", ".join(others)))
        if not is_new:
            return
    slots = slots_of(type(obj))
    for name in gone:
        object.__delattr__(obj, name) if name in slots else object.__getattribute__(obj, "__dict__").pop(name)
    for name, value in changed.items():
        object.__setattr__(obj, name, value) if name in slots else object.__getattribute__(obj, "__dict__").update({name: value})
    base: Any = _base_of(obj)
    if base is not None:
        _fill_items(obj, base, held.items, beside=held.beside)


def _fill_items(obj: Any, base: Any, items: list[Any], *, beside: bool) -> None:
    now = _items_of(obj, base)
    if not beside:
        if _are_same(base, now, items):
            return
        base.clear(obj)
    if issubclass(base, dict):
        for key, value in items:
            base.__setitem__(obj, key, value)
    else:
        (base.update if base is set else base.extend)(obj, items)


def _are_same(base: Any, now: list[Any], new: list[Any]) -> bool:
    if base is set:
        return set(now) == set(new)
    if len(now) != len(new):
        return False
    if issubclass(base, dict):
        now, new = ([part for pair in pairs for part in pair] for pairs in (now, new))
    return all(map(_is_same, now, new))


def _base_of(obj: Any) -> Any:
    return next((base for base in BASES if isinstance(obj, base)), None)


def _items_of(obj: Any, base: Any) -> list[Any]:
    return list(base.items(obj) if issubclass(base, dict) else base.__iter__(obj))


def _is_same(now: Any, new: Any) -> bool:
    if now is new:
        return True
    kind = type(now)
    if kind is not type(new):
        return False
    if issubclass(kind, tuple):
        return len(now) == len(new) and all(map(_is_same, now, new))
    return issubclass(kind, OF_EACH_PROCESS) or ((is_plain(kind) or kind is frozenset) and bool(now == new or (now != now and new != new)))


def _kind_in(now: dict[str, Any], name: str) -> str:
    return name_of(type(now[name])) if name in now else ""


def _called(place: Place, path: Path) -> str:
    return ".".join(part for part in place if part) + "".join(f".{step}" if kind == "attribute" else f"[{step!r}]" for kind, step in path)


def holds(obj: Any, held: Held) -> bool:
    """Return whether `obj` still has the contents `held`."""
    now = attributes_in(obj)
    base: Any = _base_of(obj)
    # Of an attribute that cannot be pickled, only the type's name is known.
    is_same = all(_is_same(now.get(name, _MISSING), value) for name, value in held.attributes.items())
    is_same = is_same and all(name in held.attributes or name in held.others for name in now)
    return is_same and (base is None or held.beside or _are_same(base, _items_of(obj, base), held.items))


def fill(obj: Any, held: Held) -> None:
    """Set the contents of `obj` to `held`."""
    _fill(("", "", ""), (), obj, held)


# -- on an engine --------------------------------------------------------------------------------------------------------

_before: dict[int, tuple[Any, Held]] | None = None
_told: list[tuple[str, str, str]] = []  # name of an object, what was set, and what it holds that cannot be pickled


def said(*, on_engine: bool) -> list[str]:
    """Return the messages about objects that were left as they are, and clear them."""
    told = _told.copy()
    _told.clear()
    is_so, by_whom, set_it = (
        ("on the engines as its library makes it", "the notebook", "Set it inside the cell.")
        if on_engine
        else ("in the notebook as it was", "the cell", "Set it outside of the cell as well.")
    )
    return [
        f"`{name}` is {is_so}, without what {by_whom} has set ({changed}): it holds what cannot be sent ({others}). {set_it}"
        for name, changed, others in told
    ]


def librarys_objects() -> frozenset[int]:
    """Return the ids of this process's library objects that came with the cell."""
    return frozenset(_before or ())


def fill_in_cell(obj: Any, held: Held) -> bool:
    """Set the contents of `obj` to `held` until the end of the cell; return whether there is one that may change libraries."""
    if _before is None or is_apart():
        return False
    _remember(obj)
    fill(obj, held)
    return True


def _remember(obj: Any) -> None:
    if _before is not None and id(obj) not in _before:
        base = _base_of(obj)
        _before[id(obj)] = obj, Held(attributes_in(obj), [] if base is None else _items_of(obj, base), {})


@contextmanager
def objects_left_as_they_were() -> Iterator[None]:
    """Restore at the end of the ``with`` block the contents of library objects that were filled within it."""
    global _before
    _before = {}
    try:
        yield
    finally:
        noted, _before = _before, None
        for obj, held in noted.values():
            with suppress(Exception):
                fill(obj, held)
        _told.clear()
