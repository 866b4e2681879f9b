"""``torch.compile`` and tensors that span the ranks: compiled code takes plain ones.

So what the cell has compiled is run as it is written where the cell calls it, on global tensors, and compiled inside of models. Calls that
are made only to learn from them are not compiled: they are of other numbers of samples, for which the compiler would begin again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import wraps
from typing import Any

import torch
from torch.jit import _builtins, _recursive
from torch.utils import checkpoint

from ...serialization.stand_ins import stands_for
from ...system.patches import patched


@contextmanager
def as_written() -> Iterator[None]:
    """Run compiled functions as they are written until the end of the ``with`` block."""
    with ExitStack() as stack:
        compiles = torch.compile
        begun = False

        def begin() -> None:
            nonlocal begun
            if not begun and _is_there():
                begun = True
                stack.enter_context(torch.compiler.set_stance("force_eager"))

        @wraps(compiles)
        def compile_and_begin(*args: Any, **kwargs: Any) -> Any:
            made = compiles(*args, **kwargs)
            begin()  # with the cell's first use of the compiler
            return made

        begin()
        stack.enter_context(patched(torch, "compile", compile_and_begin))
        stack.enter_context(_recomputed_alike())
        yield


@contextmanager
def _recomputed_alike() -> Iterator[None]:
    """Let activation checkpointing compute again what it has computed compiled or as it is written, until the end of the ``with`` block."""

    def alike(function: Callable[..., Any]) -> Callable[..., Any]:
        if not _is_there():
            return function
        now = _eval_frame()._stance.stance

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with torch.compiler.set_stance(now):
                return function(*args, **kwargs)

        return run

    generator = checkpoint._checkpoint_without_reentrant_generator

    @wraps(generator)
    def without_reentrant(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return generator(alike(function), *args, **kwargs)

    def apply(function: Callable[..., Any], *args: Any) -> Any:
        # As it is now: the view has one of its own for functions with a backward pass.
        inherited = super(checkpoint.CheckpointFunction, checkpoint.CheckpointFunction)
        return inherited.apply(alike(function), *args)  # type: ignore[attr-defined]

    with (
        patched(checkpoint, "_checkpoint_without_reentrant_generator", without_reentrant),
        patched(checkpoint.CheckpointFunction, "apply", apply),
    ):
        yield


_learning = False


@contextmanager
def not_compiled() -> Iterator[None]:
    """Run models as they are written until the end of the ``with`` block, for calls that are made only to learn from them."""
    global _learning
    before, _learning = _learning, True
    try:
        yield
    finally:
        _learning = before


def compiled() -> AbstractContextManager[Any]:
    """Run compiled functions compiled, in a ``with`` block within that of :func:`as_written`."""
    return torch.compiler.set_stance("default") if _is_there() and not _learning else nullcontext()


def _eval_frame() -> Any:
    return sys.modules["torch._dynamo.eval_frame"]


def _is_there() -> bool:
    """Return whether the compiler was imported; that takes seconds, and not for this."""
    return "torch._dynamo.eval_frame" in sys.modules


# ``torch.jit`` in a cell: its compiler knows PyTorch's functions by their addresses, and what it has compiled asks nobody.


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
            stack.enter_context(patched(target, name, replacement))
        yield
