"""Initial values of names in a module and its classes, read from the source text where they are obvious.

One regular expression reads the text: a library has thousands of modules, mostly code, for which a parser would take seconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from ..analysis.plain_values import plain_value

_TEXT = re.compile(
    r"^(?:class[ ]+(?P<kind>\w+)|(?P<other>(?:def|async|if|for|try|with|while|else|elif|except|finally)\b)"
    r"|(?P<indent>[ ]{4}|)(?P<name>[A-Za-z_]\w*)(?:[ ]*:[^=\n]+)?[ ]*=[ ]*"
    r"(?P<value>\{\}|\[\]|\(\)|None|True|False|-?\d[\w.]*|[rbfuRBFU]{0,2}(?:\"[^\"\n]*\"|'[^'\n]*').*|[A-Za-z_][\w.]*\(\)"
    r"|(?:\w+\.)?(?:defaultdict\(\w+\)|deque\(maxlen=\w+\))|[{\[(].*"
    r"|[-+~]*[\w.]+(?:\(.*\))?[ ]*(?:(?:[-+*/%<>|&^]|==|!=).*|(?:if|and|or|is|in|not)\b.*)|not\b.*"
    r"|[-+]?(?:float|int|math\.\w+)\b.*|(?:bool|str|complex|tuple|list|dict|set|abs|max|min|round|sum)\(.*"
    r"|-?(?:np|numpy|torch)\.\w+|-?[A-Z_][A-Z0-9_]+)[ ]*(?:\#.*)?$)",
    re.MULTILINE,
)
_MOST = 20_000  # characters of a container literal; longer ones are tables and no settings
_BLOCK = re.compile(r"^(?:if|for|try|with|while|else|elif|except|finally)\b.*\n(?:(?:[ \t].*)?\n)*", re.MULTILINE)
_SET_IN_IT = re.compile(r"^[ \t]+([A-Za-z_]\w*)[ \t]*(?::[^=\n]+)?=[^=]", re.MULTILINE)
_SHARED_BY_ALL = re.compile(r"__dict__\s*=\s*(?:self|cls|[A-Z]\w*)\.(\w+)")
_OPENS = re.compile(r"[{\[(]|\w+\([ ]*(?:#.*)?$")
_CALL = re.compile(r"[A-Za-z_][\w.]*\(\)|(?:\w+\.)?(?:defaultdict\(\w+\)|deque\(maxlen=\w+\))")
EMPTY = object()
"""Stands for the result of a call (`dict()`, `defaultdict(list)`, `threading.local()`)."""


def first_values(module: ModuleType) -> list[tuple[str, str, Any]]:
    """Return (class or "", name, value) of the initial values in the source text of `module`, where they are obvious."""
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
            with suppress(ValueError, SyntaxError, TypeError, RecursionError, LookupError, ArithmeticError):
                place = kind if match["indent"] else "", match["name"]
                if _OPENS.match(value) and value not in ("{}", "[]", "()"):
                    first = _filled(text, match, partial(_known, text, found, place[0]))
                elif _CALL.fullmatch(value):
                    first = EMPTY
                else:
                    first = plain_value(value, partial(_known, text, found, place[0]))
                found[place] = first
    yield from ((kind, name, first) for (kind, name), first in found.items())


def _known(text: str, found: dict[tuple[str, str], Any], kind: str, name: str) -> Any:
    """Return the value of a name in an expression; raise a `ValueError` if the text may assign it elsewhere as well."""
    place = (kind, name) if (kind, name) in found else ("", name)
    value = found[place]
    # A line that ends in a comma passes a keyword argument.
    others = re.findall(rf"^[ \t]+{name}[ ]*[-+*/|]?=[^=](?!.*,[ ]*$)|\b(?:for|as|import)\b.*\b{name}\b", text, re.MULTILINE)
    if value is EMPTY or len(others) > (1 if place[0] else 0):
        raise ValueError(name)
    return value


def _filled(text: str, match: re.Match[str], known: Callable[[str], Any]) -> Any:
    """Return the value of a bracket that opens in a line and closes there or at the start of a later line."""
    line = match["value"]
    with suppress(SyntaxError):
        return plain_value(line, known)
    end = re.compile(rf"^{match['indent']}[}}\])].*", re.MULTILINE).search(text, match.end(), match.end() + _MOST)
    return plain_value(text[match.start("value") : end.end() if end is not None else match.end()], known)


def set_by_conditions(module: ModuleType) -> set[str]:
    """Return the names that the text of `module` may assign while it is imported within ``if``, ``try`` or a loop."""
    text = Path(str(module.__file__)).read_text(encoding="utf-8")
    return {name for block in _BLOCK.findall(text + "\n") for name in _SET_IN_IT.findall(block)}


def shared_by_all(module: ModuleType) -> set[str]:
    """Return the class attributes in `module` that serve as ``__dict__`` of all instances: ``self.__dict__ = self._shared_state``."""
    return set(_SHARED_BY_ALL.findall(Path(str(module.__file__)).read_text(encoding="utf-8")))
