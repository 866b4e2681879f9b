"""What the ranks of a run have printed, kept in its folder: a page that is reloaded lacks lines of the cell that runs.

Ranks other than 0 send what they print with ``--output all`` alone.

Lines wait in memory until they are written, about once a second, by the thread that writes the record. Of a line that is written over with
carriage returns, as progress bars are, the last state is kept. The disk is not filled by a cell that prints for days: of each rank the
newest `LIMIT` bytes stay, at least, and twice as many at most.

::

    dtrain-runs/<run>/output/
        rank-0.log, rank-1.log, …
        rank-0.old.log, …         what was printed before, once there is more than LIMIT
"""

from __future__ import annotations

import os
import re
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..protocol import RunOutput
from ..system.confined import file_below, folder_below, make_folder_below, names_below

OUTPUT = "output"
LIMIT = 4 * 2**20
"""Bytes of a rank's file after which the next is begun."""
SHOWN = 64 * 2**10
"""Bytes that a view is given, the last ones."""
_FILE = re.compile(r"rank-(\d{1,7})(\.old)?\.log", re.ASCII)
_APPENDING = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class OutputLog:
    """Takes in what ranks show. :meth:`add` may be called on any thread, the rest on one.

    Parameters
    ----------
    run_folder : Path, optional
        The run's folder; ``None``: nothing can be kept.
    """

    def __init__(self, run_folder: Path | None) -> None:
        self._folder = run_folder
        self._lock = threading.Lock()
        self._begun: dict[tuple[int, str], str] = {}  # lines that have no end yet, of each stream of a rank
        self._lines: dict[int, list[str]] = {}  # to be written

    def add(self, rank: int, kind: str, content: dict[str, Any]) -> None:
        """Take in what a rank has shown: the kind and the content of a message of Jupyter's. Of displays the text is kept."""
        if self._folder is None:
            return
        if kind == "stream":
            stream, text = str(content.get("name")), str(content.get("text"))
        elif kind in ("display_data", "execute_result") and (shown := content.get("data", {}).get("text/plain")):
            stream, text = "display", f"{shown}\n"
        else:
            return
        with self._lock:
            *lines, begun = (self._begun.pop((rank, stream), "") + text).split("\n")
            if begun:  # a carriage return at its end may still be followed by the end of the line
                self._begun[rank, stream] = begun[begun.rstrip("\r").rfind("\r") + 1 :]
            self._lines.setdefault(rank, []).extend(map(_last_state, lines))

    def write(self) -> None:
        """Write what has come. What the disk refuses is lost: the record must never cost the training."""
        with self._lock:
            lines, self._lines = self._lines, {}
        for rank, of_rank in lines.items():
            if self._folder is not None and of_rank:
                with suppress(OSError):
                    self._append(rank, "".join(f"{line}\n" for line in of_rank).encode(errors="replace"))

    def finish(self) -> None:
        """Write all that is left, lines without an end too."""
        with self._lock:
            for (rank, _), begun in sorted(self._begun.items()):
                self._lines.setdefault(rank, []).append(_last_state(begun))
            self._begun = {}
        self.write()

    def _append(self, rank: int, data: bytes) -> None:
        assert self._folder is not None
        runs, run_id, name = self._folder.parent, self._folder.name, f"rank-{rank}.log"
        make_folder_below(runs, run_id, OUTPUT)
        with folder_below(runs, run_id, OUTPUT) as folder:
            handle = os.open(name, _APPENDING, 0o600, dir_fd=folder)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                size = os.fstat(handle).st_size
            if size > LIMIT:
                os.replace(name, f"rank-{rank}.old.log", src_dir_fd=folder, dst_dir_fd=folder)


def read_output(run_folder: Path, rank: int, *, limit: int | None = SHOWN) -> RunOutput:
    """Return what `rank` of a run has printed, the last `limit` bytes of it; nothing where nothing was kept."""
    runs, run_id = run_folder.parent, run_folder.name
    names = names_below(runs, run_id, OUTPUT)
    ranks = sorted({int(found[1]) for name in names if (found := _FILE.fullmatch(name))})
    data, is_cut = b"", False
    for name in (f"rank-{rank}.log", f"rank-{rank}.old.log"):
        wanted = None if limit is None else limit - len(data)
        if wanted == 0:
            is_cut |= name in names
            break
        with suppress(OSError):
            part, cut = _end_of(runs, run_id, name, wanted)
            data, is_cut = part + data, is_cut or cut
    text = data.decode(errors="replace")
    return RunOutput(run_id=run_id, rank=rank, ranks=ranks, text=text.split("\n", 1)[-1] if is_cut else text, is_cut=is_cut)


def _end_of(runs: Path, run_id: str, name: str, limit: int | None) -> tuple[bytes, bool]:
    """Return the last bytes of a file, and whether there are more."""
    with file_below(runs, run_id, OUTPUT, name) as handle:
        size = os.fstat(handle).st_size
        length = min(size, 2 * LIMIT if limit is None else limit)
        return os.pread(handle, length, size - length), length < size


def _last_state(line: str) -> str:
    return line.rstrip("\r").rpartition("\r")[2]
