"""``torch.compile`` and tensors that span the ranks: compiled code takes plain ones.

So what the cell has compiled is run as it is written where the cell calls it, on global tensors, and compiled inside of models.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import wraps
from typing import Any
from unittest import mock

import torch


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
        stack.enter_context(mock.patch.object(torch, "compile", compile_and_begin))
        yield


def compiled() -> AbstractContextManager[Any]:
    """Run compiled functions compiled, in a ``with`` block within that of :func:`as_written`."""
    return torch.compiler.set_stance("default") if _is_there() else nullcontext()


def _is_there() -> bool:
    """Return whether the compiler was imported; that takes seconds, and not for this."""
    return "torch._dynamo.eval_frame" in sys.modules
