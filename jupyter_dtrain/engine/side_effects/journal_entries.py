"""Entries of a journal of files: read from a snapshot on, and undone before steps are recomputed."""

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
    """Truncate files to their size at the snapshot `number` of a run (``None``: at its beginning). No rank writes meanwhile."""
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
    """Make the entries since the snapshot of `step` at `place` those that follow a snapshot `number`, without truncating files."""
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
    """Return the mark of a snapshot, and the entries after it."""
    if number is None:
        return {}, entries
    marks = [index for index, entry in enumerate(entries) if entry["do"] == "snapshot" and entry["number"] == number]
    return (entries[marks[-1]], entries[marks[-1] + 1 :]) if marks else ({}, [])


def kind_and_paths(entry: Entry) -> tuple[str, ...]:
    """Return the kind of an entry and its files; entries with equal ones are the same change."""
    return (entry["do"], *entry["paths"]) if "paths" in entry else (entry["do"], entry["path"])


def file_size(path: str) -> int | None:
    """Return the size of a file in bytes, ``None`` if there is no regular file."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None
