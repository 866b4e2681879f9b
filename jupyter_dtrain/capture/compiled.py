"""What ``torch.compile`` has made, written as what it was made from, and how: compiled code and its caches belong to one process."""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any


def reduced_compiled(obj: Any) -> Any:
    """Return how a compiled function, or the context of a compiled module, reduces; ``NotImplemented`` for another object."""
    frames = sys.modules.get("torch._dynamo.eval_frame")  # not imported: then nothing was compiled
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
