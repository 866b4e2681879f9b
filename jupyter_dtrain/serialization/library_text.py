"""What the text of a module gives names first, its own and those of its classes, where that is plain to see.

It is read with one pattern, as a library has thousands of modules and most of what they hold is code: a parser would take seconds for it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

_TEXT = re.compile(
    r"^(?:class[ ]+(?P<kind>\w+)|(?P<other>(?:def|async|if|for|try|with|while|else|elif|except|finally)\b)"
    r"|(?P<indent>[ ]{4}|)(?P<name>[A-Za-z_]\w*)(?:[ ]*:[^=\n]+)?[ ]*=[ ]*"
    r"(?P<value>\{\}|\[\]|\(\)|None|True|False|-?\d[\w.]*|\"[^\"\\\n]*\"|'[^'\\\n]*'|[A-Za-z_][\w.]*\(\)"
    r"|(?:\w+\.)?(?:defaultdict\(\w+\)|deque\(maxlen=\w+\))|[{\[].*)[ ]*(?:\#.*)?$)",
    re.MULTILINE,
)
_MOST = 20_000  # characters of a container that a text fills: what is longer is a table and no setting
_SHARED_BY_ALL = re.compile(r"__dict__\s*=\s*(?:self|cls|[A-Z]\w*)\.(\w+)")
EMPTY = object()
"""Stands for what a call makes (`dict()`, `defaultdict(list)`, `threading.local()`)."""


def first_values(module: ModuleType) -> list[tuple[str, str, Any]]:
    """Return what the text of `module` gives names of its own and of its classes first, where that is plain to see."""
    key = getattr(module, "__file__", None)
    if not isinstance(key, str) or not key.endswith(".py"):
        return []
    if key not in _first:
        try:
            text = Path(key).read_text(encoding="utf-8")
        except (OSError, ValueError):
            text = ""
        _first[key] = list(_read(text))
    return _first[key]


_first: dict[str, list[tuple[str, str, Any]]] = {}


def _read(text: str) -> Iterator[tuple[str, str, Any]]:
    kind = ""
    found: dict[tuple[str, str], Any] = {}
    for match in _TEXT.finditer(text):
        if match["kind"] or match["other"]:
            kind = match["kind"] or ""
        elif match["name"] and not match["name"].startswith("__") and (bool(kind) or not match["indent"]):
            value = match["value"]
            with suppress(ValueError, SyntaxError, TypeError, RecursionError):
                if value[0] in "{[" and value not in ("{}", "[]"):
                    first = _filled(text, match)
                else:
                    first = EMPTY if value.endswith(")") and value != "()" else ast.literal_eval(value)
                found[kind if match["indent"] else "", match["name"]] = first
    yield from ((kind, name, first) for (kind, name), first in found.items())


def _filled(text: str, match: re.Match[str]) -> Any:
    """Return the container of plain values that begins in a line, and ends there or with a line that closes it."""
    line = match["value"]
    with suppress(SyntaxError):
        return ast.literal_eval(line)
    end = re.compile(rf"^{match['indent']}[}}\]]", re.MULTILINE).search(text, match.end(), match.end() + _MOST)
    return ast.literal_eval(text[match.start("value") : end.end() if end is not None else match.end()])


def shared_by_all(module: ModuleType) -> set[str]:
    """Return the attributes of classes in `module` in which all their objects have their own: ``self.__dict__ = self._shared_state``."""
    return set(_SHARED_BY_ALL.findall(Path(str(module.__file__)).read_text(encoding="utf-8")))
