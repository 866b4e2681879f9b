"""Names that code looks up by a text: ``globals()[name]``, ``eval("nn." + kind)``, ``getattr(sys.modules[__name__], name)``.

Which names these are is known when the code runs. So where a cell does this, or a function that goes with it, all names of the
notebook go along that can be sent: more bytes than are needed, and the value that the notebook has.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import FunctionType
from typing import Any

from .code_objects import names_in
from .names import CellNames, all_global_reads

_IN_CELL = frozenset({"globals", "locals", "eval", "exec"})
_IN_FUNCTION = _IN_CELL - {"locals"}  # which are its own there
_SHELLS = frozenset({"In", "Out", "exit", "quit", "get_ipython", "open"})


def with_dynamic_names(names: CellNames, seen: Iterable[object], namespace: Mapping[str, Any]) -> CellNames:
    """Return `names` with all others of `namespace`, if the cell or a function among `seen` looks up names by a text."""
    if not any(_is_builtin(word, namespace) for word in _IN_CELL.intersection(names)) and not any(
        _looks_up(obj, namespace) for obj in seen
    ):
        return names
    found = {*names, *_SHELLS}
    others = {name: 1 for name in namespace if name not in found and not name.startswith("_")}
    return replace(names, maybe={**names.maybe, **others})


def _looks_up(obj: object, namespace: Mapping[str, Any]) -> bool:
    if not isinstance(obj, FunctionType) or obj.__globals__ is not namespace:
        return False
    found = names_in(obj.__code__)
    if "__main__" in found or {"modules", "__name__"} <= found:  # getattr(sys.modules[__name__], name)
        return True
    words = {word for word in _IN_FUNCTION.intersection(found) if _is_builtin(word, namespace)}
    return bool(words) and not words.isdisjoint(all_global_reads(obj.__code__))  # `model.eval()` has the word too


def _is_builtin(word: str, namespace: Mapping[str, Any]) -> bool:
    """Return whether `word` is not a function of the notebook's own, as ``def eval(model)``."""
    builtin = getattr(builtins, word)
    return namespace.get(word, builtin) is builtin
