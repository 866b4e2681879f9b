"""Operators that a notebook has made (``torch.library.custom_op``): PyTorch's dispatcher has one of each name in a process.

The reader enters the operator in its own dispatcher, with the notebook's functions; where it has one of this name it takes its place, as it
does where the notebook runs the operator's cell again.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

_FUNCTIONS = ("_init_fn", "_abstract_fn", "_setup_context_fn", "_backward_fn")
_PYTORCHS = "torch._library.custom_ops"


def operators() -> list[object]:
    """Return the notebook's own: ``torch.ops.namespace.name`` finds them, whatever names they have."""
    found = getattr(sys.modules.get(_PYTORCHS), "OPDEFS", {})
    return [operator for operator in list(found.values()) if operator._init_fn.__module__ == "__main__"]


def reduced_operator(obj: Any) -> Any:
    """Return how an operator reduces, ``NotImplemented`` for any other object."""
    if type(obj).__module__ != _PYTORCHS or type(obj).__name__ != "CustomOpDef":
        return NotImplemented
    state = {
        "functions": {name: getattr(obj, name) for name in _FUNCTIONS},
        "kernels": {device: _kernel(function) for device, function in obj._backend_fns.items()},
        "vmap": obj._vmap_fn,
        "autocast": dict(obj._autocast_dtype),
        "dispatch": dict(getattr(obj, "_torch_dispatch_fns", {})),
    }
    return _defined, (type(obj), obj._namespace, obj._name, obj._schema, tuple(map(str, obj._tags))), state, None, None, _register


def _kernel(function: Any) -> Any:
    """Return what the user has registered, of what PyTorch has wrapped around it."""
    wrapper = inspect.unwrap(function)
    within = dict(zip(wrapper.__code__.co_freevars, wrapper.__closure__ or (), strict=True))
    return within["fn"].cell_contents if wrapper.__module__ == _PYTORCHS and "fn" in within else function


def _defined(kind: Any, namespace: str, name: str, schema: str, tags: tuple[str, ...]) -> Any:
    import torch

    given = (tuple(getattr(torch.Tag, tag.rpartition(".")[2]) for tag in tags),) if tags else ()
    return kind(namespace, name, schema, None, *given)


def _register(operator: Any, state: dict[str, Any]) -> None:
    vars(operator).update(state["functions"])
    for device, function in state["kernels"].items():
        operator.register_kernel(device)(function)
    if state["vmap"] is not None:
        operator.register_vmap(state["vmap"])
    for device, dtype in state["autocast"].items():
        operator.register_autocast(device, dtype)
    for kind, function in state["dispatch"].items():
        operator.register_torch_dispatch(kind, function)
