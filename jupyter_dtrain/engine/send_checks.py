"""Find the parts of a cell's results that cannot be sent or saved, one by one, after packing all of them has failed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..serialization.cached_functions import CachedFunction
from ..serialization.copy_restore import Contents
from ..serialization.library_state import stays
from ..serialization.pickler import Packer
from ..serialization.reducers import forgets
from .result_pickler import Changes, SpanningTensors
from .user_frames import is_users_module


class CannotSave(Exception):
    """A value that cannot be saved would be missing in a resumed cell, or be reset to its initial state."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"`{name}` would be lost or begin anew ({reason})")


class SendChecks:
    """Tries to pack each part of a cell's results separately.

    Parameters
    ----------
    packer : callable
        Returns a packer, given the function that replaces tensors that span the ranks.
    objects : sequence of object
        Objects from the notebook.
    before : mapping of str to object
        The cell's names before it ran.
    """

    def __init__(
        self, packer: Callable[[Callable[[Any], Any] | None], Packer], *, objects: Sequence[object], before: Mapping[str, Any]
    ) -> None:
        self._packer, self._objects, self._before = packer, objects, before

    def why_not(self, obj: object, whole: Callable[[Any], Any] | None = None) -> str | None:
        """Return why `obj` cannot be sent; ``None`` if it can."""
        try:
            self._packer(whole).dump(obj)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None

    def states(self, states: list[Any]) -> list[Any]:
        """Return those of the libraries' `states` that can be sent; the others stay on the engine."""
        refused = [state for state in states if self.why_not(state) is not None]
        stays(refused)
        return [state for state in states if not any(state is one for one in refused)]

    def changes(self, changes: Changes, stays: dict[str, str], whole: Callable[[Any], Any] | None = None) -> Changes:
        """Return `changes` without parts that cannot be sent, whose reasons are added to `stays`."""
        changed = {index: self._contents(index, new, stays, whole) for index, new in changes.changed.items()}
        return Changes(changed, changes.deleted)

    def _contents(self, index: int, new: Contents, stays: dict[str, str], whole: Callable[[Any], Any] | None) -> Contents:
        reasons = {f".{key}": reason for key, value in new.attributes.items() if (reason := self.why_not(value, whole)) is not None}
        attributes = {key: value for key, value in new.attributes.items() if f".{key}" not in reasons}
        obj = self._objects[index]
        reasons = {key: reason for key, reason in reasons.items() if not forgets(obj, key[1:])}
        reason = self.why_not(new.items, whole)
        if reason is not None:
            reasons[""] = f"of what the cell put into it, something cannot be sent ({reason})"
        unnamed = f"{obj.__qualname__}.cache" if isinstance(obj, CachedFunction) else f"a {type(obj).__name__}"
        name = next((name for name, value in self._before.items() if value is obj), unnamed)
        stays |= {name + key: reason for key, reason in reasons.items()}
        return replace(new, items=None if reason is not None else new.items, attributes=attributes)

    def refuse_to_lose_state(self, values: list[dict[str, Any]], missing: list[frozenset[str]], spanning: SpanningTensors) -> None:
        """Raise if a value that cannot be saved may hold further state, which would be reset to its initial state.

        Raises
        ------
        CannotSave
        """
        for part, names in zip(values, missing, strict=True):
            for name in sorted(names):
                obj = part[name]
                if isinstance(obj, list | tuple | dict | set | deque) or is_users_module(type(obj).__module__):
                    raise CannotSave(name, self.why_not(obj, spanning.note) or "")
