"""Tracebacks of cells: each error once, with the cell's own lines and the ranks that raised it."""

from __future__ import annotations

import linecache
import re
from collections.abc import Mapping, Sequence

from ..elastic.worker_group import WorkerResult
from ..engine.cell import Failure, Frame
from ..errors import CellError
from ..system.resources import advice_for

_CONTEXT = 2  # lines shown before and after the failing line, in the notebook's own code
_CELL_FILE = re.compile(r"ipykernel_\d+[/\\]\d+\.py$")


def cell_error(ends: Sequence[WorkerResult], *, cells: Mapping[str, str], left_out: Mapping[str, str]) -> CellError | None:
    """Return the error that the ranks raised, or ``None`` if none did.

    Ranks that failed only because another one left are omitted. If ranks raised different errors, the first rank's is shown in full and the
    others in a line each.

    Parameters
    ----------
    cells : mapping of str to str
        File names of notebook cells → their display names (``"Cell In[3]"``).
    left_out : mapping of str to str
        Names that were not sent → the reason, which is added if the cell misses one.
    """
    failures = {end.rank: end.outcome.failure for end in ends if end.outcome is not None and end.outcome.failure is not None}
    primary = {rank: failure for rank, failure in failures.items() if not failure.secondary} or failures
    if not primary:
        return None
    groups: dict[tuple[object, ...], list[int]] = {}
    for rank, failure in primary.items():
        groups.setdefault(_identity(failure), []).append(rank)
    (ranks, *others) = groups.values()
    shown = primary[ranks[0]]
    lines = render(shown, ranks, world_size=len(ends), cells=cells)
    missing = re.match(r"name '(\w+)' is not defined", shown.message)
    if shown.name == "NameError" and missing and missing[1] in left_out:
        lines.append(f"({missing[1]!r} exists in the notebook but could not be sent: {left_out[missing[1]]})")
    lines += [f"({hint})" for name, message, hint in _HINTS if shown.name == name and re.match(message, shown.message)]
    if (advice := advice_for(shown.name, shown.message)) is not None:
        lines.append(f"({' '.join(part for part in (shown.memory, advice) if part)})")
    for other in others:
        failure = primary[other[0]]
        interrupted = failure.name == KeyboardInterrupt.__name__
        lines.append(
            f"{_ranks(other)} {_location(failure, cells)}" if interrupted else f"{_ranks(other)} raised {failure.name}: {failure.message}"
        )
    return CellError.of(shown.name, shown.message, lines=[*lines, *ended(ends)], ranks=ranks)


_NO_KEYBOARD = "Engines have no keyboard: "
_OWN_GROUP = (
    "The engines are a process group already, which a cell does not see that is written for one process. Code that distributes itself "
    "runs with `%%distribute --strategy none`, as torchrun would run it."
)
_DATABASE = (
    "Each engine has opened the database: what libraries write by themselves is not written once for all. Write it in another cell, "
    "or behind `if is_main():` (from jupyter_dtrain import is_main)."
)
_BREAKPOINT = (
    f"{_NO_KEYBOARD}a breakpoint ends the cell. `%debug` looks at the variables there, on each rank. Take %%distribute off the cell to "
    "step through it."
)
_HINTS = (
    (
        "EOFError",
        "EOF when reading a line$|$",
        f"{_NO_KEYBOARD}ask with input() or getpass() in another cell, and use its answer in this one.",
    ),
    ("BdbQuit", "", _BREAKPOINT),
    ("ValueError", "trying to initialize the default process group twice", _OWN_GROUP),
    ("OperationalError", "disk I/O error|database is locked|database disk image is malformed|attempt to write a readonly", _DATABASE),
)
"""Hints by error name and a pattern for the start of the message."""


def at_fault(ends: Sequence[WorkerResult], cells: Mapping[str, str]) -> str:
    """Return the error of the first failed rank in one line with its place; empty if none failed."""
    failures = [end.outcome.failure for end in ends if end.outcome is not None and end.outcome.failure is not None]
    failure = next((failure for failure in failures if not failure.secondary), failures[0] if failures else None)
    return "" if failure is None else f"{failure.name}: {failure.message} ({_location(failure, cells).removeprefix('was ')})"


def ended(ends: Sequence[WorkerResult]) -> list[str]:
    """Return a message about ranks whose processes were killed."""
    killed = [end.rank for end in ends if end.killed]
    if not killed:
        return []
    return [
        f"({_ranks(killed)} did not leave by {'itself' if len(killed) == 1 else 'themselves'} and had to be ended: other engines take over)"
    ]


def _identity(failure: Failure) -> tuple[object, ...]:
    """Return a key that is equal for equal failures: type, place, and message without numbers and addresses."""
    place = [(frame.filename, frame.line) for frame in failure.frames]
    return (failure.name, re.sub(r"0x[0-9a-f]+|\d+(\.\d+)?", "#", failure.message), *place)


def render(failure: Failure, ranks: Sequence[int], *, world_size: int, cells: Mapping[str, str]) -> list[str]:
    """Return the lines of a traceback as Jupyter shows them."""
    rule = "-" * 75
    where = "" if world_size == 1 else f"on all {world_size} ranks" if len(ranks) == world_size else f"on {_ranks(ranks)}"
    return [rule, f"{failure.name:<40}{where:>35}".rstrip(), *_chain(failure, cells)]


def _chain(failure: Failure, cells: Mapping[str, str]) -> list[str]:
    """Return the lines of an error after those of its causes."""
    lines: list[str] = []
    if failure.before is not None:
        lines += [*_chain(failure.before, cells), "", _CAUSED if failure.is_caused else _HANDLED, ""]
    for frame in _shown_frames(failure.frames, cells):
        lines += _frame(frame, cells)
    lines.append(f"{failure.name}: {failure.message}" if failure.message else failure.name)
    lines += [line for note in failure.notes for line in note.splitlines()]
    for number, part in enumerate(failure.parts, start=1):
        lines.append(f"  {'+-' if number == 1 else '  '}+---------------- {number} ----------------")
        lines += [f"    | {line}" for line in _chain(part, cells)]
    return [*lines, f"    +{'-' * 36}"] if failure.parts else lines


_CAUSED = "The above exception was the direct cause of the following exception:"
_HANDLED = "During handling of the above exception, another exception occurred:"


def _location(failure: Failure, cells: Mapping[str, str]) -> str:
    """Return the place of a failure in the notebook's own code."""
    frames = _shown_frames(failure.frames, cells)
    own = [frame for frame in frames if _name(frame.filename, cells) is not None] or frames
    return f"was at {_name(own[-1].filename, cells) or own[-1].filename}, line {own[-1].line}" if own else "was at no line of the cell"


def _shown_frames(frames: Sequence[Frame], cells: Mapping[str, str]) -> list[Frame]:
    """Return the notebook's own frames, and the last library frame below them, which raised."""
    own = [index for index, frame in enumerate(frames) if _name(frame.filename, cells) is not None]
    if not own:
        return list(frames[-1:])
    last = own[-1]
    return [frames[index] for index in own] + list(frames[last + 1 :][-1:])


def _frame(frame: Frame, cells: Mapping[str, str]) -> list[str]:
    cell = _name(frame.filename, cells)
    function = "" if frame.function == "<module>" else f", in {frame.function}"
    lines = [f"{cell or frame.filename}, line {frame.line}{function}"]
    source = linecache.getlines(frame.filename)
    if cell is None or not source:
        text = frame.text or linecache.getline(frame.filename, frame.line).strip()
        return [*lines, f"      {text}"] if text else lines
    first = max(1, frame.line - _CONTEXT)
    for number in range(first, min(len(source), frame.line + _CONTEXT) + 1):
        text = source[number - 1].rstrip()
        if number == 1 and not text:
            continue  # the line of the magic
        mark = "---->" if number == frame.line else "     "
        lines.append(f"{mark} {number:>3} {text}".rstrip())
    return lines


def _name(filename: str, cells: Mapping[str, str]) -> str | None:
    if filename in cells:
        return cells[filename]
    return "Cell" if _CELL_FILE.search(filename) else None


def _ranks(ranks: Sequence[int]) -> str:
    """Return ``rank 2``, ``ranks 0–3`` or ``ranks 0, 2``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]}–{ranks[-1]}"
    return "ranks " + ", ".join(map(str, ranks))
