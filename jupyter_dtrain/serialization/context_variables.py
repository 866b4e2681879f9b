"""Context variables of the notebook (``contextvars.ContextVar``): recreated with their name, default, and value in the present context.

The value that a cell has set last is set in the notebook's variable. A variable of a library is refused, as is a ``Token``: the library's
code would not see a copy of its variable.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any

import cloudpickle

_UNSET = object()


def reduced_variable(obj: Any) -> Any:
    """Return the reduce value of a context variable that no library has made, else ``NotImplemented``."""
    if type(obj) is not ContextVar or _is_librarys(obj):
        return NotImplemented
    default = _UNSET
    with suppress(LookupError):
        default = Context().run(obj.get)
    arguments = (obj.name,) if default is _UNSET else (obj.name, default)
    return _made, arguments, values_of(obj), None, None, set_value


def values_of(variable: ContextVar[Any]) -> list[Any]:
    """Return the value that is set in the present context, an empty list if there is none."""
    value = copy_context().get(variable, _UNSET)
    return [] if value is _UNSET else [value]


def set_value(variable: ContextVar[Any], values: list[Any]) -> None:
    """Set the variable as :func:`values_of` has read it; one without a value stays as it is, as only a token can take a value away."""
    for value in values:
        variable.set(value)


def _made(name: str, *default: Any) -> ContextVar[Any]:
    return ContextVar(name, default=default[0]) if default else ContextVar(name)


def _is_librarys(variable: ContextVar[Any]) -> bool:
    by_name = cloudpickle.cloudpickle._should_pickle_by_reference
    modules = [module for name, module in sys.modules.copy().items() if name != "__main__" and type(module) is type(sys)]
    holders = [module for module in modules if any(value is variable for value in vars(module).copy().values())]
    return any(by_name(module) for module in holders)
