"""What is other in a library's modules and classes than their texts say that it is at first (:mod:`.library_state` sends it)."""

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
"""Packages whose state is none of this module's: settings say what of it goes along, or it is a process's own."""
_OF_THE_PROCESS = re.compile(
    r"(?:^|_)(?:init|inited|started|loaded|registered|avail|available|checked|warned|warn_once|lock|locked|pid)(?:_|$)|initiali[sz]ed",
    re.IGNORECASE,
)
"""Names of what says, with a yes, a no or a count, what a library has done in this process, which another has still to do."""
_CODE = (FunctionType, BuiltinFunctionType, MethodType, type, ModuleType)
_MADE_BY_CODE = 1 << 9  # a flag of classes that a `class` statement or the like has made
PLAIN_CONTAINERS = (dict, list, set, deque)
MISSING = object()


def packages_of(objects: Iterable[object]) -> list[str]:
    """Return the libraries that `objects` belong to, but for those whose state is looked after elsewhere."""
    objects = list(objects)
    kinds = set(map(type, objects))
    named = {kind for kind in kinds if kind is ModuleType or kind is FunctionType or issubclass(kind, type)}
    homes = {getattr(kind, "__module__", None) for kind in kinds}
    homes.update(getattr(obj, "__name__" if type(obj) is ModuleType else "__module__", None) for obj in objects if type(obj) in named)
    packages = {home.partition(".")[0] for home in homes if isinstance(home, str)}
    return sorted(packages - EVERYBODYS - sys.stdlib_module_names)


def modules_of(package: str, modules: dict[str, ModuleType]) -> Iterator[ModuleType]:
    """Yield those of `modules` that belong to `package`, unless it lies beside the notebook."""
    if _lies_beside(modules.get(package)):
        return  # it goes along as it is
    known = _names.get(package)
    if known is None or known[0] != len(modules):
        beginning = package + "."
        known = _names[package] = len(modules), [name for name in modules if name == package or name.startswith(beginning)]
    yield from (module for name in known[1] if isinstance(module := modules.get(name), ModuleType))


_names: dict[str, tuple[int, list[str]]] = {}  # of the modules of a library, by how many modules there are: thousands, of all libraries


def _lies_beside(module: ModuleType | None) -> bool:
    """Return whether `module` is one of the notebook's own, in its folder."""
    file = getattr(module, "__dict__", {}).get("__file__")
    if not isinstance(file, str) or file.startswith(installed_folders()) or "site-packages" in file:
        return False
    return Path(file).resolve().is_relative_to(Path.cwd().resolve())


def changed_places(module: ModuleType) -> Iterator[Place]:
    """Yield the places of `module` where there is something else than its text says."""
    names = vars(module)
    for kind, name, first in first_values(module):
        owner = names.get(kind) if kind else module
        if kind and not (isinstance(owner, type) and owner.__module__ == module.__name__):
            continue
        now = vars(owner).get(name, MISSING)
        if now is not first and now is not MISSING and _is_other(name, first, now):
            yield module.__name__, kind, name


def _is_other(name: str, first: Any, now: Any) -> bool:
    kind = type(now)  # a proxy may load what it stands for, or raise, where `isinstance` looks at its ``__class__``
    if issubclass(kind, threading.local):
        return first is EMPTY and bool(vars(now))
    items: Iterable[Any] = now.values() if issubclass(kind, dict) else now if issubclass(kind, PLAIN_CONTAINERS) else ()
    if isinstance(first, PLAIN_CONTAINERS) and first and kind is type(first):
        return _differ(now, first) and not any(_is_code(item) for item in items)
    if issubclass(kind, PLAIN_CONTAINERS):
        return any(not _is_code(item) or is_the_notebooks(item) for item in items)
    if first is EMPTY or _is_code(now):  # an object of its own, which may be as it was
        return False
    if is_of_the_process(name, now):
        return False
    return kind is not type(first) or _differ(now, first)


def _is_code(value: object) -> bool:
    return issubclass(type(value), _CODE) or _is_symbol(value)


def _is_symbol(value: Any) -> bool:
    """Return whether `value` comes to itself when its class is asked for it as a pickle would.

    Each process has one such object by a name, made when it is first asked for: another process's may be refused.
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
    """Return whether a function or a class is no library's: a callback, an entry in a registry."""
    if isinstance(code, MethodType | BuiltinFunctionType) and not isinstance(code.__self__, ModuleType | type | None):
        code = type(code.__self__)
        if code.__module__ == "builtins":
            return True
    return getattr(code, "__module__", None) == "__main__"


def _differ(now: Any, first: Any) -> bool:
    try:
        return bool(now != first)
    except Exception:  # of arrays, say
        return True


def is_of_the_process(name: str, value: object) -> bool:
    """Return whether `value`, called so, says what a library has done in this process."""
    return (value is None or issubclass(type(value), int)) and _OF_THE_PROCESS.search(name) is not None
