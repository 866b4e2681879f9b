"""Commands that take effect at the same step on every rank, with no collective per step.

Ranks of a data-parallel run are in lockstep to within a step: one of them may have finished step *n* while another
is still in it. When a command arrives, each rank posts the step that it is committed to (the one in progress) in
the group's store and goes on to no further step until all have posted. The highest number is where all of them act; those below it
run on to it. While no command is there, a step costs one look at a flag.
"""

from __future__ import annotations

import threading
from datetime import timedelta

from torch.distributed import Store  # type: ignore[attr-defined]  # not in torch's own list of exports

_NEVER = 2**62  # a step that no run reaches


class StopRun(BaseException):
    """Ends the cell at the end of a step. Not an ``Exception``: the cell's own handlers must not catch it."""


class Control:
    """The commands to one rank.

    Parameters
    ----------
    store : torch.distributed.Store
        Shared by the ranks of the run.
    rank, world_size : int
    timeout : timedelta
        How long the ranks wait for each other to agree.
    """

    def __init__(self, store: Store, *, rank: int, world_size: int, timeout: timedelta) -> None:
        self._store = store
        self._rank, self._world_size = rank, world_size
        self._timeout = timeout
        self._lock = threading.Lock()
        self._committed = 0  # the step in progress, or the next one if none is
        self._asked = False
        self._target: int | None = None

    def command(self, name: str) -> None:
        """Take a command from the notebook kernel."""
        if name == "stop":
            self.stop()

    def stop(self) -> None:
        """Stop at the next step that all ranks agree on. Called from the engine's control thread."""
        with self._lock:
            if not self._asked:
                self._asked = True
                self._store.set(f"stop/{self._rank}", str(self._committed))

    def close(self) -> None:
        """Say that this rank goes no further, so that no other waits for what it is committed to."""
        with self._lock:
            if not self._asked:
                self._asked = True
                self._store.set(f"stop/{self._rank}", str(_NEVER))

    def boundary(self, finished: int) -> None:
        """Say that `finished` steps are done and no other has begun. Raises :class:`StopRun` at the agreed one."""
        with self._lock:
            if not self._asked:
                self._committed = finished + 1
                return
        if self._target is None:
            keys = [f"stop/{rank}" for rank in range(self._world_size)]
            self._store.wait(keys, self._timeout)
            self._target = max(int(self._store.get(key)) for key in keys)
        if finished >= self._target:
            raise StopRun
