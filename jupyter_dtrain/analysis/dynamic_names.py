"""Handle names that code looks up by a string: ``globals()[name]``, ``eval("nn." + kind)``, ``getattr(sys.modules[__name__], name)``.

These names are known only at run time. So if a cell, or a function that is sent with it, does this, all names of the notebook that can be
sent are sent: more bytes than necessary, but the right values.
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
_IN_FUNCTION = _IN_CELL - {"locals"}  # in a function, these are the function's own
_SHELLS = frozenset({"In", "Out", "exit", "quit", "get_ipython", "open"})


def with_dynamic_names(names: CellNames, seen: Iterable[object], namespace: Mapping[str, Any]) -> CellNames:
    """Return `names` with all other names of `namespace`, if the cell or a function among `seen` looks up names by a string."""
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
    return bool(words) and not words.isdisjoint(all_global_reads(obj.__code__))  # `model.eval()` does not read the global


def _is_builtin(word: str, namespace: Mapping[str, Any]) -> bool:
    """Return whether `word` is the builtin and not a definition of the notebook, such as ``def eval(model)``."""
    builtin = getattr(builtins, word)
    return namespace.get(word, builtin) is builtin
