"""Files of a cluster's folder of buffers, by their names below it, where the notebook's process and engines are to find them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path


class EngineFiles:
    """The folder of one host, which the notebook and all engines share: there is nothing to send.

    Parameters
    ----------
    folder : Path
        The notebook's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def send(self, names: Sequence[str], on_progress: Callable[[int, int], None] | None = None) -> None:
        """Let all engines find files that are here; `on_progress` is given how many of how many bytes are sent.

        Raises
        ------
        ClusterError
            A host has no room for them.
        """

    def fetch(self, names: Sequence[str], rank: int) -> None:
        """Let files be here that the engine of `rank` has made; a `ClusterError`: they cannot be had."""

    def on_one_host(self, names: Sequence[str], rank: int) -> list[str]:  # noqa: ARG002  # it is lost as a whole
        """Return those of the files which the engine of `rank` has made that are lost with its host, though the notebook's is not."""
        return []

    def pass_on(self, name: str, *, source: int, target: int) -> None:
        """Let the engine of rank `target` find a file that the engine of rank `source` has made; a `ClusterError`: it cannot."""

    def find(self, names: Sequence[str]) -> list[str]:
        """Let files be here that any engine has made; return those that cannot be had."""
        return [name for name in names if not (self._folder / name).exists()]

    def spread(self, names: Sequence[str]) -> bool:
        """Let all engines find files that any of them has made; return whether that can be."""
        return not self.find(names)

    def journal(self, path: Path, run_id: str) -> Path:  # noqa: ARG002  # of one host it is where it is
        """Return where rank 0 notes what a run does to files: `path`, if its host has that folder."""
        return path

    def remove(self, names: Sequence[str]) -> None:
        """Remove files where engines find them; names may be patterns."""

    def keep(self, names: Sequence[str]) -> None:
        """Remove buffers other than these where engines find them and this process does not."""
