"""``torch.jit`` in a cell: its compiler knows PyTorch's functions by their addresses, and what it has compiled asks nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest import mock

import torch
from torch.jit import _builtins, _recursive

from ...capture.reduction import stands_for


@contextmanager
def scripting(whole: Callable[[Any], Any]) -> Iterator[None]:
    """Let functions be traced, scripted and run as on one process.

    Parameters
    ----------
    whole : callable
        Returns values with the global tensors in them whole.
    """
    trace = torch.jit.trace
    call: Callable[..., Any] = torch.jit.ScriptFunction.__call__

    @wraps(trace)
    def jit_trace(func: Any, example_inputs: Any = None, *args: Any, **kwargs: Any) -> Any:
        # What is recorded is what one process computes, without exchanges.
        return trace(func, whole(example_inputs), *args, **kwargs)  # type: ignore[no-untyped-call]

    @wraps(call)
    def scripted_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        # It asks no `__torch_function__`, and would take the rank's part for all of a tensor.
        return call(self, *whole(args), **whole(kwargs))

    def of_original(find: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(find)
        def found(function: Any, *args: Any) -> Any:
            original = stands_for(function)
            return find(function if original is None else original, *args)

        return found

    find_builtin = of_original(_builtins._find_builtin)
    with ExitStack() as stack:
        for target, name, replacement in (
            (torch.jit, "trace", jit_trace),
            (torch.jit.ScriptFunction, "__call__", scripted_call),
            (_builtins, "_find_builtin", find_builtin),
            (_recursive, "_find_builtin", find_builtin),
            (_recursive, "try_compile_fn", of_original(_recursive.try_compile_fn)),
        ):
            stack.enter_context(mock.patch.object(target, name, replacement))
        yield
