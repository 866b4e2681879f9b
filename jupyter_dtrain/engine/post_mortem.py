"""Post-mortem debugging: the frames of a failed cell, kept on the engine until the next cell, and a debugger in them.

The debugger is IPython's. It would read from a keyboard, which engines do not have. Therefore the notebook reads each line, runs it here by
an ordinary call (:func:`command`), and shows the result. The engine does not wait between two lines.

Frames of the user and of libraries are kept. This project's own frames would keep reducers and snapshots alive, which must not outlive the
process group; `cell.forget_frames` and :func:`clear_callers` clear them. Kept frames hold the memory of a step, so none are kept after an
out-of-memory error.
"""

from __future__ import annotations

import bdb
import gc
import io
import os
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

from ..system.patches import patched
from ..system.resources import advice_for
from .memory import give_back_what_is_scarce
from .task import Task
from .tensor.parted import part_of, shown_alone
from .user_frames import is_ours

GONE = "The frames are gone: another cell has begun on the engines since, or they were freed by q.\n"
NO_ROOM = "Memory had run out, so the frames were freed at once.\n"
_DEBUGGERS = ("bdb.py", "pdb.py", "IPython/core/debugger.py")
_ASK_SOMEBODY = ("", "pdb.set_trace", "ipdb.set_trace", "IPython.core.debugger.set_trace")
_QUITS = frozenset({"q", "quit", "exit", "EOF"})
_NEED_KEYBOARD = frozenset({"interact", "debug", "commands", "run", "restart"})


@dataclass
class Kept:
    """The frames of one cell.

    Attributes
    ----------
    run_id : str
    rank, world_size : int
    trace : TracebackType, optional
        Without this project's frames; ``None``: memory had run out.
    frames : collection of FrameType
    debugger : Pdb, optional
        Set once the user has opened it.
    """

    run_id: str
    rank: int
    world_size: int
    trace: TracebackType | None
    frames: Collection[FrameType]
    debugger: Any = None


_kept: Kept | None = None


def keep(error: BaseException, task: Task) -> Collection[FrameType]:
    """Keep the user's and libraries' frames of an error that ended the cell, and return them."""
    global _kept
    if task.strategy.owns_process_group:  # such engines restart after each cell
        return ()
    if advice_for(type(error).__name__, str(error)) is not None:
        _kept = Kept(task.run_id, task.rank, task.world_size, None, ())
        return ()
    entries = []
    trace = error.__traceback__
    while trace is not None:
        if not is_ours(trace.tb_frame.f_code.co_filename):
            entries.append(trace)
        trace = trace.tb_next
    while entries and entries[-1].tb_frame.f_code.co_filename.endswith(_DEBUGGERS):  # of a `breakpoint()`
        entries.pop()
    found: TracebackType | None = None
    for entry in reversed(entries):
        found = TracebackType(found, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    if found is None:
        return ()
    frames = frozenset(entry.tb_frame for entry in entries)
    _kept = Kept(task.run_id, task.rank, task.world_size, found, frames)
    return frames


def clear_callers() -> None:
    """Clear the frames that called the cell, to which kept frames refer. Must be called after they have returned."""
    for kept in _kept.frames if _kept is not None else ():
        frame = kept.f_back
        while frame is not None:
            if frame not in _kept.frames:  # type: ignore[union-attr]
                try:
                    frame.clear()
                except RuntimeError:  # a frame that is still running: this function's caller
                    break
            frame = frame.f_back


def forget() -> None:
    """Free the kept frames, if any."""
    global _kept
    if _kept is not None:
        _kept = None
        gc.collect()  # a cell's names and functions form reference cycles
        give_back_what_is_scarce()


@contextmanager
def breakpoints_end_the_cell() -> Iterator[None]:
    """Let ``breakpoint()`` raise until the end of the ``with`` block: in a kernel it might silently do nothing."""

    def stop(*args: Any, **kwargs: Any) -> Any:
        if os.environ.get("PYTHONBREAKPOINT", "") in _ASK_SOMEBODY:
            raise bdb.BdbQuit
        return sys.__breakpointhook__(*args, **kwargs)  # noqa: T100 - the user has disabled it, or named another

    with patched(sys, "breakpointhook", stop):
        yield


# -- what the notebook calls -------------------------------------------------------------------------------------------------------


def begin(run_id: str, theme: str) -> tuple[str, bool]:
    """Open the debugger in the frames of run `run_id`; return its output, and whether it is over. `theme` is IPython's color theme."""
    if _kept is None or _kept.run_id != run_id:
        return GONE, True
    if _kept.trace is None:
        return NO_ROOM, True
    kept = _kept

    debugger = kept.debugger = _new_debugger(theme)

    def start() -> bool:
        debugger.reset()
        debugger.setup(None, kept.trace)
        debugger.print_stack_entry(debugger.stack[debugger.curindex])
        return False

    return _done(kept, start)


def command(run_id: str, line: str) -> tuple[str, bool]:
    """Run one debugger command; return its output, and whether the debugger is over.

    A command that quits frees the frames. One that would continue the program (``c``, ``n``) ends the debugger but keeps the frames.
    """
    if _kept is None or _kept.run_id != run_id or _kept.debugger is None:
        return GONE, True
    debugger = _kept.debugger

    def do() -> bool:
        name = debugger.parseline(line)[0]
        if name in _NEED_KEYBOARD:
            debugger.error(f"{name} would read from a keyboard, and engines have none")
            return False
        line_done = debugger.precmd(line)
        return bool(debugger.postcmd(debugger.onecmd(line_done), line_done))

    text, is_over = _done(_kept, do)
    if is_over and debugger.parseline(line)[0] in _QUITS:
        del debugger, do
        forget()
    return text, is_over


def _done(kept: Kept, action: Callable[[], bool]) -> tuple[str, bool]:
    output = kept.debugger.stdout = io.StringIO()
    is_over = False
    with redirect_stdout(output), redirect_stderr(output), _alone(kept):
        try:
            is_over = action()
        except KeyboardInterrupt:
            output.write("*** KeyboardInterrupt\n")
        except Exception as error:  # not caught by the debugger, such as a command that restarts the program
            output.write(f"*** {type(error).__name__}: {error}\n")
    return output.getvalue(), is_over


@contextmanager
def _alone(kept: Kept) -> Iterator[None]:
    if kept.world_size == 1:
        yield
        return
    with shown_alone(kept.rank, kept.world_size):
        yield


def _new_debugger(theme: str) -> Any:
    from IPython.core.debugger import Pdb

    class RankPdb(Pdb):
        """IPython's debugger, with output to a string buffer."""

        def do_local(self, arg: str) -> None:
            """Show the part of a tensor that this rank has, and which part it is: local EXPRESSION."""
            with suppress(Exception):  # the debugger has shown the error
                value, words = part_of(self._getval(arg))
                self.message(f"{value!r}\n({words})")

    debugger = RankPdb(stdin=io.StringIO(), stdout=io.StringIO(), nosigint=True, readrc=False)
    for name in ("set_theme_name", "set_colors"):  # IPython 9, and before
        if hasattr(debugger, name):
            with suppress(Exception):  # a theme that only the notebook has
                getattr(debugger, name)(theme)
            break
    return debugger
