"""Keep the output of a run's ranks in its folder, as a reloaded page lacks lines of a running cell.

Ranks other than 0 send their output only with ``--output all``.

Lines wait in memory until the thread that writes the record writes them, about once a second. Of a line that is overwritten with carriage
returns, as progress bars are, the last state is kept. Log rotation bounds the disk use: of each rank at least the newest `LIMIT` bytes are
kept, and about twice as many at most.

::

    dtrain-runs/<run>/output/
        rank-0.log, rank-1.log, …
        rank-0.old.log, …         earlier output, once there is more than LIMIT
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
"""Size of a rank's file at which it is rotated."""
SHOWN = 64 * 2**10
"""Bytes of the end that a view gets."""
_FILE = re.compile(r"rank-(\d{1,7})(\.old)?\.log", re.ASCII)
_APPENDING = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class OutputLog:
    """Log of the ranks' output. :meth:`add` may be called on any thread, the other methods on one.

    Parameters
    ----------
    run_folder : Path, optional
        Folder of the run; with ``None``, nothing is kept.
    """

    def __init__(self, run_folder: Path | None) -> None:
        self._folder = run_folder
        self._lock = threading.Lock()
        self._begun: dict[tuple[int, str], str] = {}  # unfinished lines, by rank and stream
        self._lines: dict[int, list[str]] = {}  # to be written

    def add(self, rank: int, kind: str, content: dict[str, Any]) -> None:
        """Add a rank's output: the kind and the content of a Jupyter message. Of displays, the plain text is kept."""
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
            if begun:  # keeps a trailing carriage return, as a newline may follow it
                self._begun[rank, stream] = begun[begun.rstrip("\r").rfind("\r") + 1 :]
            self._lines.setdefault(rank, []).extend(map(_last_state, lines))

    def write(self) -> None:
        """Write new lines. Lines that cannot be written are dropped: the record must never disturb the training."""
        with self._lock:
            lines, self._lines = self._lines, {}
        for rank, of_rank in lines.items():
            if self._folder is not None and of_rank:
                with suppress(OSError):
                    self._append(rank, "".join(f"{line}\n" for line in of_rank).encode(errors="replace"))

    def finish(self) -> None:
        """Write all remaining lines, unfinished ones included."""
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
    """Return the last `limit` bytes of the output of `rank`; empty if nothing was kept."""
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
    """Return the last bytes of a file, and whether it is longer."""
    with file_below(runs, run_id, OUTPUT, name) as handle:
        size = os.fstat(handle).st_size
        length = min(size, 2 * LIMIT if limit is None else limit)
        return os.pread(handle, length, size - length), length < size


def _last_state(line: str) -> str:
    return line.rstrip("\r").rpartition("\r")[2]
