"""The last output of an engine without routine log lines: after a crash of compiled code it often shows why, and where in the cell.

Python's faulthandler prints the stacks of a crashing process. Frames below the cell's, and most threads, belong to the engine and
ipyparallel, and say nothing about the cell.
"""

from __future__ import annotations

import re
from pathlib import Path

NUM_LINES = 15
_OURS = str(Path(__file__).parents[1])
_LOGGED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \[(Engine|IPKernelApp)[^\]]*\] ")
_TASK = re.compile(_LOGGED.pattern + "Handling apply_request")
_WRONG = re.compile(_LOGGED.pattern + r"(ERROR|CRITICAL) ")
_THREAD = re.compile(r"(Current thread|Thread) 0x\w+")
_FRAME = re.compile(r'  File "(.*)", line \d+ in ')
_FATAL = "Fatal Python error: "
_MODULES = ("Extension modules: ", ", ")  # in one line, if no other output interferes
_CELL = re.compile(r'File "[^"]*ipykernel_\d+[/\\]\d+\.py"')
_OF_TASK = f"{_OURS}/engine/worker.py"


def last_words(log: str) -> str:
    """Return the last lines in `log` since the engine's last task began, without routine lines; may be empty."""
    lines = log.replace(_FATAL, f"\n{_FATAL}").splitlines()
    begin = max((number for number, line in enumerate(lines) if _TASK.match(line)), default=-1) + 1
    lines = [line for line in lines[begin:] if not _LOGGED.match(line) or _WRONG.match(line)]
    return "\n".join([_CELL.sub("Cell", line) for line in _without_machinery(lines) if line.strip()][-NUM_LINES:])


def _without_machinery(lines: list[str]) -> list[str]:
    """Return `lines` with only those stacks of faulthandler's that belong to the cell or the crashed thread."""
    kept: list[str] = []
    stack: list[str] = []
    for line in [*lines, ""]:
        if _THREAD.match(line) or (stack and _FRAME.match(line)):
            if _THREAD.match(line):
                kept += _of_cell(stack)
                stack = []
            stack.append(line)
        elif not line.startswith(_MODULES):
            kept += [*_of_cell(stack), line]
            stack = []
    return kept


def _of_cell(stack: list[str]) -> list[str]:
    """Return a thread's `stack` (first line: its name) without the frames below the cell; empty for threads of the machinery."""
    if not stack:
        return []
    files = [match[1] for match in map(_FRAME.match, stack) if match is not None]
    if _OF_TASK in files:
        frames = stack[1 : files.index(_OF_TASK) + 1]
    elif stack[0].startswith("Current"):
        frames = stack[1:]
    else:
        return []
    return [stack[0], *(frame for frame, file in zip(frames, files, strict=False) if not file.startswith(_OURS))]
