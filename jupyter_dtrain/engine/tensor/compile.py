"""``torch.compile`` and global tensors: compiled code takes plain tensors only.

A compiled function that the cell calls on global tensors runs eagerly. Inside models, where tensors are plain, it runs compiled. Probe
calls, which the project makes only to learn about a model, run eagerly: they have other numbers of samples, for which the compiler would
compile again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import wraps
from typing import Any

import torch
from torch.jit import _builtins, _recursive

from ...serialization.stand_ins import stands_for
from ...system.patches import patched
from .recomputed_functions import recomputed_as


@contextmanager
def as_written() -> Iterator[None]:
    """Run compiled functions eagerly until the end of the ``with`` block."""
    with ExitStack() as stack:
        compiles = torch.compile
        begun = False

        def begin() -> None:
            nonlocal begun
            if not begun and has_compiler():
                begun = True
                stack.enter_context(torch.compiler.set_stance("force_eager"))

        @wraps(compiles)
        def compile_and_begin(*args: Any, **kwargs: Any) -> Any:
            made = compiles(*args, **kwargs)
            begin()  # the cell's first `torch.compile` may have imported the compiler
            return made

        begin()
        stack.enter_context(patched(torch, "compile", compile_and_begin))
        stack.enter_context(recomputed_as(_alike))
        yield


def _alike(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a checkpointed `function` that keeps the compiler stance of the forward pass."""
    if not has_compiler():
        return function
    now = _eval_frame()._stance.stance

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.compiler.set_stance(now):
            return function(*args, **kwargs)

    return run


_learning = False


@contextmanager
def not_compiled() -> Iterator[None]:
    """Run models eagerly until the end of the ``with`` block: for probe calls."""
    global _learning
    before, _learning = _learning, True
    try:
        yield
    finally:
        _learning = before


def compiled() -> AbstractContextManager[Any]:
    """Return a context within that of :func:`as_written` that runs compiled functions compiled, except in :func:`not_compiled`."""
    return torch.compiler.set_stance("default") if has_compiler() and not _learning else nullcontext()


def _eval_frame() -> Any:
    return sys.modules["torch._dynamo.eval_frame"]


def has_compiler() -> bool:
    """Return whether the compiler is imported. Importing it takes seconds, so this module never does."""
    return "torch._dynamo.eval_frame" in sys.modules


# ``torch.jit`` in a cell: its compiler identifies PyTorch's functions by address, and compiled code calls no ``__torch_function__``.


@contextmanager
def scripting(whole: Callable[[Any], Any]) -> Iterator[None]:
    """Let ``torch.jit`` trace, script and run functions as on one process, until the end of the ``with`` block.

    Parameters
    ----------
    whole : callable
        Returns a value with each global tensor in it replaced by its full tensor.
    """
    trace = torch.jit.trace
    call: Callable[..., Any] = torch.jit.ScriptFunction.__call__

    @wraps(trace)
    def jit_trace(func: Any, example_inputs: Any = None, *args: Any, **kwargs: Any) -> Any:
        # Trace on full tensors, so that the graph holds the operations of one process and no collectives.
        return trace(func, whole(example_inputs), *args, **kwargs)  # type: ignore[no-untyped-call]

    @wraps(call)
    def scripted_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        # A scripted function calls no `__torch_function__`: it would take the rank's part for the full tensor.
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
            stack.enter_context(patched(target, name, replacement))
        yield
