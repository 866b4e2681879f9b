"""Lists, dicts and sets, and what holds attributes or variables: copied, compared and refilled in place."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, MutableMapping
from typing import Any

MAPPINGS = (dict, MutableMapping)


def copy_of(holder: Any) -> Any:
    """Return a copy of what is in a list, a dict, a set or what holds attributes, to be given to the functions below."""
    return dict(entries_of(holder)) if isinstance(holder, MAPPINGS) else set(holder) if isinstance(holder, set) else list(holder)


def entries_of(holder: Any) -> Iterable[tuple[Any, Any]]:
    """Return what is in a mapping: of a dict what it has, which its class may not show as it is (tables that make what is looked up)."""
    kind: Any = OrderedDict if isinstance(holder, OrderedDict) else dict if isinstance(holder, dict) else type(holder)
    return kind.items(holder)  # type: ignore[no-any-return]


def is_same(holder: Any, copy: Any) -> bool:
    """Return whether `holder` holds the very things that are in `copy`."""
    if len(holder) != len(copy):
        return False
    if isinstance(holder, MAPPINGS):
        return all(key in copy and copy[key] is value for key, value in entries_of(holder))
    return bool(holder == copy) if isinstance(holder, set) else all(left is right for left, right in zip(holder, copy, strict=True))


def refill(holder: Any, copy: Any) -> None:
    """Let `holder` hold what is in `copy`, if it does not."""
    if is_same(holder, copy):
        return
    if isinstance(holder, MAPPINGS) and not isinstance(holder, dict):  # what has no slot, or no class's, for another name
        for key in [key for key in holder if key not in copy]:
            del holder[key]
        for key, value in copy.items():
            if holder.get(key, copy) is not value:
                holder[key] = value
        return
    holder.clear()
    (holder.extend if isinstance(holder, list | deque) else holder.update)(copy)


# What is known of a module that a cell calls: one record, which is looked up at each call.
