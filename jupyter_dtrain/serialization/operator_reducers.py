"""Custom operators and compiled functions of the notebook: registered or compiled again in the reader."""

from __future__ import annotations

import inspect
import sys
from types import FunctionType
from typing import Any


def reduced_compiled(obj: Any) -> Any:
    """Return the reduce value of a compiled function, or of the context of a compiled module; ``NotImplemented`` for all else."""
    frames = sys.modules.get("torch._dynamo.eval_frame")  # if it is not imported, nothing was compiled
    if frames is None:
        return NotImplemented
    if isinstance(obj, FunctionType) and "_torchdynamo_orig_callable" in obj.__dict__:
        within = dict(zip(obj.__code__.co_freevars, obj.__closure__ or (), strict=True))
        context = within["self"].cell_contents if "self" in within else None
        if type(context) is frames.OptimizeContext:
            return _compiled, (_settings(context), obj.__dict__["_torchdynamo_orig_callable"])
    elif type(obj) is frames.OptimizeContext:
        return _context, _settings(obj)
    return NotImplemented


def _settings(context: Any) -> tuple[Any, bool, bool | None]:
    backend = context.callback
    while hasattr(backend, "_torchdynamo_orig_backend"):
        backend = backend._torchdynamo_orig_backend
    return backend, context.fullgraph, context._dynamic


def _context(backend: Any, fullgraph: bool, dynamic: bool | None) -> Any:
    import torch._dynamo

    return torch._dynamo.optimize(backend, nopython=fullgraph, dynamic=dynamic)


def _compiled(settings: tuple[Any, bool, bool | None], function: Any) -> Any:
    return _context(*settings)(function)


def operators() -> list[object]:
    """Return the notebook's custom operators: code finds them as ``torch.ops.namespace.name``, without a Python name."""
    found = getattr(sys.modules.get(_PYTORCHS), "OPDEFS", {})
    return [operator for operator in list(found.values()) if operator._init_fn.__module__ == "__main__"]


def reduced_operator(obj: Any) -> Any:
    """Return the reduce value of a custom operator, ``NotImplemented`` for all else."""
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
    """Return the user's function from PyTorch's wrapper around it."""
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


_FUNCTIONS = ("_init_fn", "_abstract_fn", "_setup_context_fn", "_backward_fn")
_PYTORCHS = "torch._library.custom_ops"
