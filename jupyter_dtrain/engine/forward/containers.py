"""Copy, compare and refill containers in place: lists, dicts, sets, and mappings of attributes or variables."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, MutableMapping
from typing import Any

from ...serialization.container_reducers import fill_deque, fill_dict

MAPPINGS = (dict, MutableMapping)


def copy_of(holder: Any) -> Any:
    """Return a shallow copy of a list, dict, set or attribute mapping, for :func:`is_same` and :func:`refill`."""
    return dict(entries_of(holder)) if isinstance(holder, MAPPINGS) else set(holder) if isinstance(holder, set) else list(holder)


def entries_of(holder: Any) -> Iterable[tuple[Any, Any]]:
    """Return the items of a mapping, bypassing overrides in subclasses of dict (a table may create entries on lookup)."""
    kind: Any = OrderedDict if isinstance(holder, OrderedDict) else dict if isinstance(holder, dict) else type(holder)
    return kind.items(holder)  # type: ignore[no-any-return]


def is_same(holder: Any, copy: Any) -> bool:
    """Return whether `holder` holds the same objects as `copy`, compared by identity (sets: by equality), and a dict in the same order."""
    if len(holder) != len(copy):
        return False
    if isinstance(holder, dict):  # of a cache, the entry that comes first is dropped
        pairs = zip(entries_of(holder), copy.items(), strict=True)
        return all(key is other and value is before for (key, value), (other, before) in pairs)
    if isinstance(holder, MAPPINGS):
        return all(key in copy and copy[key] is value for key, value in entries_of(holder))
    return bool(holder == copy) if isinstance(holder, set) else all(left is right for left, right in zip(holder, copy, strict=True))


def refill(holder: Any, copy: Any) -> None:
    """Restore the contents of `holder` from `copy`, if they differ."""
    if is_same(holder, copy):
        return
    if isinstance(holder, MAPPINGS) and not isinstance(holder, dict):  # attributes or variables: only those that differ are set
        for key in [key for key in holder if key not in copy]:
            del holder[key]
        for key, value in copy.items():
            if holder.get(key, copy) is not value:
                holder[key] = value
        return
    if isinstance(holder, dict):
        fill_dict(holder, [*copy], [*copy.values()])
    elif isinstance(holder, deque):
        fill_deque(holder, copy, holder.maxlen)
    else:
        holder.clear()
        (holder.extend if isinstance(holder, list) else holder.update)(copy)
