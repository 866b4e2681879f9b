"""Run the cell's source, and describe an error raised in it for the notebook."""

from __future__ import annotations

import ast
import asyncio
import inspect
import traceback
from asyncio import events, tasks
from collections.abc import Container, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context, copy_context
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch

from ..analysis.ast_nodes import keep_value
from ..analysis.code_objects import keep_text
from ..system.resources import AFTER_KERNEL, ON_DEVICE, advice_for, size_text
from .comm.failures import RAISED_ON
from .resume.loops import Loops
from .user_frames import is_ours, is_users

# An event loop for a cell that awaits, in the thread that runs the cell. # An engine's main thread already runs a loop: the one that
# received the task, which is blocked until the cell is done. The cell's own loop runs inside it. asyncio forbids nested loops, since they
# are usually mistakes. Here nesting is intended, so the outer loop and its task are hidden meanwhile.

CANCEL_TIMEOUT = 5.0  # seconds that tasks left by the cell have to handle their cancellation


class CellLoop:
    """Runs the parts of one cell in turn, its coroutines on a loop that is created with the first of them.

    A cell that awaits is one task in the notebook: what it sets in context variables is there until its end.
    """

    def __init__(self, *, awaits: bool) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context = copy_context() if awaits else None

    def run(self, code: CodeType, namespace: dict[str, Any]) -> Any:
        """Run a part of the cell and return its value."""
        if self._context is None:
            return eval(code, namespace)
        value = self._context.run(eval, code, namespace)
        return self._run_until_complete(value, self._context) if code.co_flags & inspect.CO_COROUTINE else value

    def _run_until_complete(self, coroutine: Coroutine[Any, Any, Any], context: Context) -> Any:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        with _outer_loop_aside():
            task = self._loop.create_task(coroutine, context=context)
            try:
                return self._loop.run_until_complete(task)
            finally:
                if task.done() and not task.cancelled():
                    task.exception()  # so that asyncio does not report what has come out of the loop itself

    def close(self) -> None:
        """Cancel tasks that the cell has started and not awaited, and close the loop."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        with _outer_loop_aside():
            try:
                pending = asyncio.all_tasks(loop)
                for task in pending:
                    task.cancel()
                if pending:
                    loop.run_until_complete(asyncio.wait(pending, timeout=CANCEL_TIMEOUT))
                loop.run_until_complete(loop.shutdown_asyncgens())
            finally:
                loop.close()


@contextmanager
def _outer_loop_aside() -> Iterator[None]:
    outer = events._get_running_loop()
    if outer is None:
        yield
        return
    # Since Python 3.12, the current task belongs to the thread and not to the loop.
    swap = getattr(tasks, "_swap_current_task", lambda _loop, task: task)
    task = swap(outer, None)
    events._set_running_loop(None)
    try:
        yield
    finally:
        events._set_running_loop(outer)
        swap(outer, task)


_OF_GROUPS = getattr(torch.distributed, "DistError", ())  # with DistBackendError, DistNetworkError, …; not in every build
_BROKEN = ("gloo", "nccl", "connection closed by peer", "connection with rank")


@dataclass(frozen=True)
class Frame:
    """One line of a traceback. `text` is the source line if the engine knows it."""

    filename: str
    line: int
    function: str
    text: str | None


@dataclass(frozen=True)
class Failure:
    """An exception that ended the cell on one rank.

    Attributes
    ----------
    name, message : str
        The exception's type and text.
    frames : list of Frame
        From the cell's line down, without this project's own frames.
    secondary : bool
        Whether it is only a consequence: another rank has left (a collective broke, a store closed), or the run was interrupted.
    memory : str
        If the host's memory has run out: how much was used and free.
    notes : tuple of str
        Notes added to it (``add_note``).
    parts : tuple of Failure
        The exceptions in an ``ExceptionGroup``.
    before : Failure, optional
        Its cause, or the exception that was being handled when it was raised.
    is_caused : bool
        Whether `before` is its cause (``raise … from …``).
    """

    name: str
    message: str
    frames: list[Frame]
    secondary: bool
    memory: str = ""
    notes: tuple[str, ...] = ()
    parts: tuple[Failure, ...] = ()
    before: Failure | None = None
    is_caused: bool = False


def run_cell(source: str, filename: str, namespace: dict[str, Any], loops: Loops | None = None) -> Any:
    """Run `source` in `namespace` and return the value of its last line if that is an expression.

    With `loops`, the cell's loops can be resumed, and a pending jump of `loops` is made.
    """
    tree = ast.parse(source, filename)
    keep_text(filename, source)
    awaits = bool(_compiled(tree, filename).co_flags & inspect.CO_COROUTINE)
    if loops is not None and not awaits:
        return _run_resumable(tree, filename, namespace, loops)
    last = tree.body.pop().value if tree.body and isinstance(tree.body[-1], ast.Expr) else None  # type: ignore[attr-defined]
    loop = CellLoop(awaits=awaits)
    try:
        loop.run(_compiled(tree, filename), namespace)
        return None if last is None else loop.run(_compiled(ast.Expression(last), filename, "eval"), namespace)
    finally:
        loop.close()


def _run_resumable(tree: ast.Module, filename: str, namespace: dict[str, Any], loops: Loops) -> Any:
    if tree.body and isinstance(last := tree.body[-1], ast.Expr):
        tree.body[-1] = keep_value(last)
    code = loops.texts.compile_cell(tree, filename, namespace, is_resumed=loops.is_jumping)
    with loops.running(namespace):
        eval(code, namespace)
    return loops.take_value()


def _compiled(tree: ast.Module | ast.Expression, filename: str, mode: str = "exec") -> CodeType:
    code: CodeType = compile(tree, filename, mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    return code


def describe(error: BaseException, told: frozenset[int] = frozenset(), *, interrupted: bool = True) -> Failure:
    """Return the description of `error` for the notebook; errors whose ids are in `told` are left out.

    If the cell was not `interrupted`, it has raised a ``KeyboardInterrupt`` itself.
    """
    told |= {id(error)}
    frames = [
        Frame(item.filename, item.lineno or 0, item.name, item.line or None)
        for item in traceback.extract_tb(error.__traceback__)
        if not is_ours(item.filename)
    ]
    name, message = type(error).__name__, str(error)
    is_host = advice_for(name, message) not in (None, ON_DEVICE, AFTER_KERNEL)
    parts = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    cause = error.__cause__
    before = cause or (None if error.__suppress_context__ else _handled(error))
    return Failure(
        name,
        message,
        frames,
        secondary=_is_secondary(error, interrupted),
        memory=_memory() if is_host else "",
        notes=tuple(map(str, getattr(error, "__notes__", ()))),
        parts=tuple(describe(part, told, interrupted=interrupted) for part in parts if id(part) not in told),
        before=None if before is None or id(before) in told else describe(before, told, interrupted=interrupted),
        is_caused=cause is not None,
    )


def _handled(error: BaseException) -> BaseException | None:
    """Return the exception that the user's code was handling when `error` was raised, skipping those of this project and of libraries."""
    handled = error.__context__
    while handled is not None and not any(is_users(item.filename) for item in traceback.extract_tb(handled.__traceback__)):
        handled = handled.__context__
    return handled


def _memory() -> str:
    import psutil

    from ..system.resources import memory

    used, limit = psutil.Process().memory_info().rss, memory()
    return (
        f"The rank's process held {size_text(used)}; of the {size_text(limit.total)} that it may have, {size_text(limit.left)} were free."
    )


def interrupted_at(frame: FrameType, filename: str) -> Failure:
    """Return the failure of a cell in `filename` that is abandoned while another thread runs it at `frame`."""
    stack = traceback.extract_stack(frame)
    begin = next((index for index, item in enumerate(stack) if item.filename == filename), len(stack))
    frames = [Frame(item.filename, item.lineno or 0, item.name, item.line or None) for item in stack[begin:] if not is_ours(item.filename)]
    return Failure(KeyboardInterrupt.__name__, "", frames, secondary=True)


def _is_secondary(error: BaseException, interrupted: bool) -> bool:
    if (isinstance(error, KeyboardInterrupt) and interrupted) or isinstance(error, _OF_GROUPS):
        return True
    if RAISED_ON in getattr(error, "__dict__", {}):  # shown as the error of that rank
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in _BROKEN)


def forget_frames(error: BaseException, kept: Container[FrameType] = ()) -> None:
    """Clear the frames of `error`, except `kept`: they would keep models, graphs and reducers alive after the run."""
    seen: BaseException | None = error
    while seen is not None:
        for frame, _ in traceback.walk_tb(seen.__traceback__):
            if frame not in kept:
                with suppress(RuntimeError):  # the frame is still running
                    frame.clear()
        seen.__traceback__ = None
        seen = seen.__cause__ or seen.__context__
