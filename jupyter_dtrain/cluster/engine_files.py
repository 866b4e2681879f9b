"""Access to the files in a cluster's folder of buffers, by name, on the notebook's host and on the engines'."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path


class EngineFiles:
    """The folder of one host, which the notebook and all engines share, so that nothing is sent.

    Parameters
    ----------
    folder : Path
        The notebook's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def send(self, names: Sequence[str], on_progress: Callable[[int, int], None] | None = None) -> None:
        """Send local files to all engines; `on_progress` takes the bytes sent and the total.

        Raises
        ------
        ClusterError
            A host has no room for them.
        """

    def fetch(self, names: Sequence[str], rank: int) -> None:
        """Fetch files that the engine of `rank` has written; raise a `ClusterError` if that fails."""

    def on_one_host(self, names: Sequence[str], rank: int) -> list[str]:  # noqa: ARG002  # on one host there are none
        """Return those files of the engine of `rank` that would be lost with its host, while the notebook's host survives."""
        return []

    def pass_on(self, name: str, *, source: int, target: int) -> None:
        """Copy a file from the engine of rank `source` to that of rank `target`; raise a `ClusterError` if that fails."""

    def find(self, names: Sequence[str]) -> list[str]:
        """Fetch files that any engine has written; return those that are missing."""
        return [name for name in names if not (self._folder / name).exists()]

    def spread(self, names: Sequence[str]) -> bool:
        """Send files that any engine has written to all engines; return whether that succeeded."""
        return not self.find(names)

    def journal(self, path: Path, run_id: str) -> Path:  # noqa: ARG002  # on one host, `path` itself
        """Return the path at which rank 0 logs a run's file operations: `path`, if its host has that folder."""
        return path

    def remove(self, names: Sequence[str]) -> None:
        """Remove files on all engines' hosts; names may be patterns."""

    def keep(self, names: Sequence[str]) -> None:
        """Remove all other buffers on hosts other than this process's."""
