"""The entries of a journal of files: read behind a snapshot, undone where steps are computed again."""

from __future__ import annotations

import json
import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from .written_files import CLOCK_STEP

Entry = dict[str, Any]


def cut_back(log: Path, number: int | None) -> None:
    """Make the files as long as they were when a run took the snapshot `number` (``None``: when it began). No rank writes meanwhile."""
    noted = read_entries(log)
    mark, entries = entries_since(noted, number)
    shared = {entry["path"] for entry in noted if entry["do"] == "share"}
    sizes: dict[str, int | None] = {**mark.get("open", {}), **mark.get("added", {})}
    for entry in entries:
        if entry["do"] == "append":
            sizes.setdefault(entry["path"], entry["size"])
    is_cut = False
    for path, size in sizes.items():
        now = file_size(path)
        if path not in shared and now is not None:
            with suppress(OSError):
                if size is None:
                    Path(path).unlink()
                elif size < now:
                    os.truncate(path, size)
                    is_cut = True
    if is_cut:
        time.sleep(2 * CLOCK_STEP / 1e9)  # the others are to find that it is from before they began


def go_on_from(log: Path, number: int, *, step: int, place: str) -> None:
    """Let what is noted since the snapshot of `step` at `place` be what is done again after a snapshot `number`; nothing is cut for it."""
    entries = read_entries(log)
    there = {"do": "snapshot", "step": step, "place": place}
    marks = [index for index, entry in enumerate(entries) if there.items() <= entry.items()]
    if not entries:
        return
    last = marks[-1] if marks else -1
    mark = {**there, "number": number, "open": entries[last].get("open", {}) if marks else {}}
    again = [entry for entry in entries[last + 1 :] if entry["do"] not in ("snapshot", "append")]
    with suppress(OSError):
        log.write_text("".join(json.dumps(entry) + "\n" for entry in (mark, *again)))


def read_entries(log: Path) -> list[Entry]:
    """Return the entries of a journal."""
    try:
        lines = log.read_text().split("\n")[:-1]  # a last line that is not whole was not done
        return [json.loads(line) for line in lines]
    except (OSError, ValueError):
        return []


def entries_since(entries: list[Entry], number: int | None) -> tuple[Entry, list[Entry]]:
    """Return the mark of a snapshot, and what was noted after it."""
    if number is None:
        return {}, entries
    marks = [index for index, entry in enumerate(entries) if entry["do"] == "snapshot" and entry["number"] == number]
    return (entries[marks[-1]], entries[marks[-1] + 1 :]) if marks else ({}, [])


def kind_and_paths(entry: Entry) -> tuple[str, ...]:
    """Return what an entry is of, and the files: entries that agree in these are the same."""
    return (entry["do"], *entry["paths"]) if "paths" in entry else (entry["do"], entry["path"])


def file_size(path: str) -> int | None:
    """Return the bytes of a file, ``None`` where there is none or it is something else."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None
