"""Changes in modules and classes of libraries, compared with the values that their source text assigns (:mod:`.library_state`)."""

from __future__ import annotations

import re
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from ..analysis.code_objects import installed_folders
from .library_text import EMPTY, first_values

Place = tuple[str, str, str]  # a module, a class in it or "", and the name

EVERYBODYS = frozenset(
    {"torch", "numpy", "pandas", "pyarrow", "scipy", "matplotlib", "cloudpickle", "traitlets", "tqdm", "psutil", "zmq", "tornado", "comm"}
    | {"IPython", "ipykernel", "ipyparallel", "ipywidgets", "anywidget", "jupyter_client", "jupyter_core", "matplotlib_inline"}
    | {"wandb", "mlflow", "dask", "distributed", "tensorboard", __name__.partition(".")[0], "__main__", "__mp_main__", "tests", "pytest"}
)
"""Packages that other parts handle (settings, integrations), or whose state belongs to each process."""
_OF_THE_PROCESS = re.compile(
    r"(?:^|_)(?:init|inited|started|loaded|registered|avail|available|checked|warned|warn_once|lock|locked|pid)(?:_|$)|initiali[sz]ed",
    re.IGNORECASE,
)
"""Names of flags and counts that record what a library has done in this process and must still do in another."""
_CODE = (FunctionType, BuiltinFunctionType, MethodType, type, ModuleType)
_MADE_BY_CODE = 1 << 9  # type flag (heap type): the class was made by a `class` statement or the like
PLAIN_CONTAINERS = (dict, list, set, deque)
MISSING = object()


def packages_of(objects: Iterable[object]) -> list[str]:
    """Return the libraries that `objects` belong to, without `EVERYBODYS` and the standard library."""
    objects = list(objects)
    kinds = set(map(type, objects))
    named = {kind for kind in kinds if kind is ModuleType or kind is FunctionType or issubclass(kind, type)}
    homes = {getattr(kind, "__module__", None) for kind in kinds}
    homes.update(getattr(obj, "__name__" if type(obj) is ModuleType else "__module__", None) for obj in objects if type(obj) in named)
    packages = {home.partition(".")[0] for home in homes if isinstance(home, str)}
    return sorted(packages - EVERYBODYS - sys.stdlib_module_names)


def modules_of(package: str, modules: dict[str, ModuleType]) -> Iterator[ModuleType]:
    """Yield those of `modules` that belong to `package`, unless the package lies in the notebook's folder."""
    if _lies_beside(modules.get(package)):
        return  # it is sent by value
    known = _names.get(package)
    if known is None or known[0] != len(modules):
        beginning = package + "."
        known = _names[package] = len(modules), [name for name in modules if name == package or name.startswith(beginning)]
    yield from (module for name in known[1] if isinstance(module := modules.get(name), ModuleType))


_names: dict[str, tuple[int, list[str]]] = {}  # names of a library's modules, cached per number of all modules, as there may be thousands


def _lies_beside(module: ModuleType | None) -> bool:
    """Return whether `module` lies in the notebook's folder."""
    file = getattr(module, "__dict__", {}).get("__file__")
    if not isinstance(file, str) or file.startswith(installed_folders()) or "site-packages" in file:
        return False
    return Path(file).resolve().is_relative_to(Path.cwd().resolve())


def changed_places(module: ModuleType) -> Iterator[Place]:
    """Yield the places of `module` whose value differs from that in its source text."""
    names = vars(module)
    for kind, name, first in first_values(module):
        owner = names.get(kind) if kind else module
        if kind and not (isinstance(owner, type) and owner.__module__ == module.__name__):
            continue
        now = vars(owner).get(name, MISSING)
        if now is not first and now is not MISSING and _is_other(name, first, now):
            yield module.__name__, kind, name


def _is_other(name: str, first: Any, now: Any) -> bool:
    kind = type(now)  # use the real type: a proxy may load its target, or raise, when `isinstance` reads its ``__class__``
    if issubclass(kind, threading.local):
        return first is EMPTY and bool(vars(now))
    items: Iterable[Any] = now.values() if issubclass(kind, dict) else now if issubclass(kind, PLAIN_CONTAINERS) else ()
    if isinstance(first, PLAIN_CONTAINERS) and first and kind is type(first):
        return _differ(now, first) and not any(_is_code(item) for item in items)
    if issubclass(kind, PLAIN_CONTAINERS):
        return any(not _is_code(item) or is_the_notebooks(item) for item in items)
    if first is EMPTY or _is_code(now):  # an object of the library's, possibly unchanged
        return False
    if is_of_the_process(name, now):
        return False
    return kind is not type(first) or _differ(now, first)


def _is_code(value: object) -> bool:
    return issubclass(type(value), _CODE) or _is_symbol(value)


def _is_symbol(value: Any) -> bool:
    """Return whether the class of `value` returns the same object when called with the reduce arguments of `value`.

    Each process creates its own object of this kind on first use and may refuse one from another process.
    """
    kind = type(value)
    if type(kind) is not type or "__new__" not in vars(kind) or not _says_how_it_reduces(kind):
        return False
    with suppress(Exception):
        function, arguments, *_ = value.__reduce_ex__(4)
        return function is kind and function(*arguments) is value
    return False


def _says_how_it_reduces(kind: type) -> bool:
    return any("__reduce__" in vars(base) or "__reduce_ex__" in vars(base) for base in kind.__mro__ if base.__flags__ & _MADE_BY_CODE)


def is_the_notebooks(code: Any) -> bool:
    """Return whether a function or class is the notebook's and not a library's: a callback, an entry in a registry."""
    if isinstance(code, MethodType | BuiltinFunctionType) and not isinstance(code.__self__, ModuleType | type | None):
        code = type(code.__self__)
        if code.__module__ == "builtins":
            return True
    return getattr(code, "__module__", None) == "__main__"


def _differ(now: Any, first: Any) -> bool:
    try:
        return bool(now != first)
    except Exception:  # for example of arrays
        return True


def is_of_the_process(name: str, value: object) -> bool:
    """Return whether `value`, by its name, records what a library has done in this process."""
    return (value is None or issubclass(type(value), int)) and _OF_THE_PROCESS.search(name) is not None
