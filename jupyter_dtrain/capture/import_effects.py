"""Modules that a notebook has imported for a side effect: a patch, an entry in a registry, an accessor.

No name in a cell leads to them, so an engine would not import them. Importing all modules of a notebook would cost seconds and memory that
most cells do not need. So an engine imports those that belong to the libraries of the objects sent, or refer to these libraries, and
modules that have set an attribute of a class that is sent. The order is the notebook's.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import sys
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType, ModuleType
from typing import Any, TypeGuard

from ..analysis.imports import brought
from ..serialization.library_changes import modules_of, packages_of
from .library_patches import Patch

_OF_THE_PROCESS = frozenset({"IPython", "ipykernel", "ipywidgets", "jupyter_dtrain", "matplotlib", "torch", "numpy", "__main__"})
_EVERYBODYS = frozenset({"torch", "numpy", "pandas", "scipy", "matplotlib"})  # nearly all libraries refer to these
_NOT_LOOKED_INTO = sys.stdlib_module_names | {"builtins", "__main__"}
_PUT_NOTHING = sys.stdlib_module_names | _OF_THE_PROCESS | {"", "None"}


_PLAIN = frozenset({type(None), str, int, float, bool, tuple, dict, list, set})


@dataclass(frozen=True)
class Imported:
    """A module that the reader imports when it unpickles this, if it is installed and not imported yet."""

    name: str

    def __reduce__(self) -> Any:
        return _imported, (self.name,)


def put_there_by_calls(kinds: Iterable[type]) -> list[Patch]:
    """Return functions that a call has put into classes of another library (``tqdm.pandas()``): `kinds`, or others of their libraries."""
    packages = {str(kind.__module__).partition(".")[0] for kind in kinds if _made_by_calls(kind)}
    if not packages:
        return []
    modules = sys.modules.copy()
    others = (value for package in packages for module in modules_of(package, modules) for value in list(vars(module).values()))
    everywhere = {id(kind): kind for kind in (*kinds, *filter(_is_class, others)) if str(kind.__module__).partition(".")[0] in packages}
    return [Patch(kind, name, function) for kind in everywhere.values() for name, function in _made_by_calls(kind)]


def imported_for_effect(
    namespace: Mapping[str, Any], objects: Iterable[object], classes: Iterable[type], beside: Iterable[ModuleType] = ()
) -> list[Imported]:
    """Return the modules imported by cells in `namespace` that affect `objects`, which are of `classes`.

    Modules `beside` the notebook are left out, as what they put into classes is sent itself.
    """
    objects = list(objects)
    here = {module.__name__ for module in beside}
    patched_by = [name for name in _patched_by(classes) if name not in here]
    packages = set(packages_of(objects))
    if not (packages or patched_by):
        return []
    found: dict[str, None] = {}
    for name in _imported_by_cells(namespace):
        package = name.partition(".")[0]
        if package in _OF_THE_PROCESS or package in sys.stdlib_module_names:
            continue
        if package in packages or not packages.isdisjoint(_referred_to(package)):
            found[name] = None
    found.update(dict.fromkeys(patched_by))
    return [Imported(name) for name in found]


def _imported(name: str) -> Imported:
    if name not in sys.modules:
        shown = io.StringIO()
        with brought(), warnings.catch_warnings(), contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
            warnings.simplefilter("ignore")
            with contextlib.suppress(Exception):  # the cell's own error says what is missing
                importlib.import_module(name)
    return Imported(name)


def _imported_by_cells(namespace: Mapping[str, Any]) -> list[str]:
    texts = [text for text in namespace.get("In", ()) if isinstance(text, str)]
    return [name for name in dict.fromkeys(name for text in texts for name in _imports_in(text)) if name in sys.modules]


@lru_cache(maxsize=1000)
def _imports_in(text: str) -> tuple[str, ...]:
    """Return the names of modules that `text` may import, in order."""
    if "import" not in text:
        return ()
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return ()
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom | ast.Call)]
    found: dict[str, None] = {}
    for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
        match node:
            case ast.Import():
                found.update(dict.fromkeys(alias.name for alias in node.names))
            case ast.ImportFrom(module=str(module), level=0):
                found.update(dict.fromkeys((module, *(f"{module}.{alias.name}" for alias in node.names))))
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name)), *_]):
                found[name] = None
    return tuple(found)


def _referred_to(package: str) -> frozenset[str]:
    """Return the libraries whose objects are module attributes in `package`."""
    beginning = package + "."
    names = [name for name in sys.modules.copy() if name == package or name.startswith(beginning)]
    return _referred_to_by(package, len(names), tuple(names))


@lru_cache(maxsize=200)
def _referred_to_by(package: str, _: int, names: tuple[str, ...]) -> frozenset[str]:
    modules = [module for name in names if isinstance(module := sys.modules.get(name), ModuleType)]
    homes = (_module_name(value) for module in modules for value in list(vars(module).values()))
    return frozenset(home.partition(".")[0] for home in homes) - {package} - _EVERYBODYS


def _module_name(value: Any) -> str:
    kind = type(value)
    if kind is ModuleType:
        return str(value.__name__)
    return str(value.__module__) if kind is FunctionType or _is_class(value) else ""


def _is_class(value: object) -> TypeGuard[type]:
    """Return whether `value` is a class, without ``isinstance``, which reads ``__class__`` and may run code of a proxy."""
    return issubclass(type(value), type)


def _patched_by(kinds: Iterable[type]) -> list[str]:
    """Return the modules that have set an attribute of a class of another library."""
    num_modules = len(sys.modules)  # a new patch comes with a new import
    found: set[str] = set()
    for kind in kinds:
        known = _known.get(id(kind))
        if known is None or known[0]() is not kind or known[1] != (num_modules, len(vars(kind))):
            known = _known[id(kind)] = weakref.ref(kind), (num_modules, len(vars(kind))), _others_in(kind)
        found |= known[2]
    if not found:
        return []
    return [name for name in sys.modules.copy() if name in found]


_known: dict[int, tuple[weakref.ref[type], tuple[int, int], frozenset[str]]] = {}


def classes_of(objects: list[object]) -> set[type]:
    """Return the classes of `objects`, the classes among them, and all their bases."""
    kinds = set(map(type, objects))
    if any(issubclass(kind, type) for kind in kinds):
        kinds |= {obj for obj in objects if _is_class(obj)}
    if ModuleType in kinds:  # the cell may instantiate the module's classes
        modules = [obj for obj in objects if type(obj) is ModuleType]
        kinds |= {value for module in modules for value in list(vars(module).values()) if _is_class(value)}
    return {base for one in kinds for base in one.__mro__}


def _made_by_calls(kind: type) -> list[tuple[str, FunctionType]]:
    """Return functions in `kind` that another library has made within a function: importing that library does not put them there.

    Not cached, as a second call puts other functions under the same names.
    """
    own = str(kind.__module__).partition(".")[0]
    if own in _NOT_LOOKED_INTO:
        return []
    return [
        (name, value)
        for name, value in list(vars(kind).items())
        if type(value) is FunctionType
        and "<locals>" in value.__qualname__
        and (home := str(value.__module__).partition(".")[0]) != own
        and home not in _PUT_NOTHING
        and not hasattr(value, "__wrapped__")
    ]


def _others_in(kind: type) -> frozenset[str]:
    """Return the modules of other libraries that have set an attribute of `kind`."""
    own = str(kind.__module__).partition(".")[0]
    if own in ("builtins", "__main__") or own in sys.stdlib_module_names:
        return frozenset()
    homes = {home for value in list(vars(kind).values()) for home in _homes_of(value) if home in sys.modules}
    no_others = {own, *_OF_THE_PROCESS, *sys.stdlib_module_names}
    return frozenset(home for home in homes if home.partition(".")[0] not in no_others)


def _homes_of(value: Any) -> Iterator[str]:
    """Yield the modules that define the function, property or accessor `value`."""
    kind = type(value)
    if kind is FunctionType:
        yield str(value.__module__)
    elif issubclass(kind, property):
        if type(value.fget) is FunctionType:
            yield str(value.fget.__module__)
    elif issubclass(kind, staticmethod | classmethod):
        yield str(getattr(value.__func__, "__module__", ""))
    elif kind not in _PLAIN and not _is_class(value):
        with contextlib.suppress(AttributeError):
            own = object.__getattribute__(value, "__dict__")  # bypasses the object's own attribute lookup
            yield from (str(part.__module__) for part in own.values() if _is_class(part) or type(part) is FunctionType)
