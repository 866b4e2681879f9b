"""Commands that take effect at the same step on every rank, with no collective per step.

Ranks of a data-parallel run are in lockstep to within a step: one of them may have finished step *n* while another
is still in it. When a command arrives, each rank posts the step that it is committed to (the one in progress) in
the group's store and goes on to no further step until all have posted. The highest number is where all of them act; those below it
run on to it. While no command is there, a step costs one look at a flag.

A pause is such a command too: the ranks wait at the first boundary of the agreed step, which is the same place on all of them, so that
none waits in a collective meanwhile, which would have a time limit. Other shares of the batches are one as well: from the same draw on,
every rank takes its part of the same division.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta

from ..protocol import EndPause, Order, Pause, SetShares, Stop, StopToReturn, TakeSnapshot
from .cell import Failure
from .comm.process_group import shared_memory
from .comm.rank_store import StoreChannel

_NEVER = 2**62  # a step that no run reaches


class StopRun(BaseException):
    """Ends the cell at the end of a step. Not an ``Exception``: the cell's own handlers must not catch it."""


class Control:
    """The commands to one rank.

    Parameters
    ----------
    talk : StoreChannel
        By which the ranks agree.
    pausing : callable
        Returns a context manager that the rank is in while it waits in the pause of this number.

    Attributes
    ----------
    on_speeds : callable
        Given the ranks' speeds where the batches are to be shared out by them from now on.
    on_return : callable
        Called just before :class:`StopRun` is raised where the run comes again, from a checkpoint.
    """

    def __init__(self, talk: StoreChannel, *, pausing: Callable[[int], AbstractContextManager[None]] = lambda _: nullcontext()) -> None:
        self._talk, self._pausing = talk, pausing
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._committed = 0  # the step in progress, or the next one if none is
        self._targets: dict[str, int | None] = {}  # of commands that were given, ``None``: not agreed yet
        self._snapshots: list[int] = []  # that were asked for and not taken
        self._came: set[int] = set()  # of which the others have heard where this rank is
        self.on_speeds: Callable[[Sequence[float]], None] = lambda _: None
        self.on_return: Callable[[], None] = lambda: None
        self._ends = False  # the stop that was asked for is the user's
        self._speeds: dict[str, Sequence[float]] = {}  # that were ordered and are not in force, by order
        self._pause = 0  # the number of the last one that was asked for
        self._resumed = 0  # the number of the last one that is over

    def take(self, order: Order) -> None:
        """Take an order of the notebook kernel. Called from the engine's control thread, also after the cell's end."""
        # An order is known here before it is posted: the cell is not to pass the step that is posted without having seen it.
        with self._news:
            match order:
                case Stop() | StopToReturn():
                    self._ends |= isinstance(order, Stop)
                    self._ask("stop")
                case TakeSnapshot(number=number):
                    self._snapshots.append(number)
                    self._ask(f"snapshot/{number}")
                case SetShares(number=number, speeds=speeds):
                    self._speeds[f"share/{number}"] = speeds
                    self._ask(f"share/{number}")
                case Pause(number=number):
                    self._pause = max(self._pause, number)
                    self._ask(f"pause/{number}")
                case EndPause(number=number):
                    self._resumed = max(self._resumed, number)
            self._news.notify()

    def _ask(self, command: str) -> None:
        if command not in self._targets:
            self._targets[command] = None
            self._talk.publish(command, str(self._committed))

    def close(self) -> None:
        """Say that this rank goes no further: no other waits for what it is committed to, or for its word of a snapshot.

        Others may have heard of a snapshot in a pause before they hear of the stop that ends it.
        """
        with self._lock:
            self._committed = _NEVER
            self._ask("stop")
            asked = [*self._snapshots]
        for number in asked:
            self.refuse(number)

    def release(self) -> None:
        """Hold nothing of the cell any more, of which only answers to others are left."""
        self._pausing, self.on_speeds, self.on_return = lambda _: nullcontext(), lambda _: None, lambda: None

    def boundary(self, finished: int, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Say that `finished` steps are done and no other has begun. Raises :class:`StopRun` at the agreed one, and waits through a pause.

        `meanwhile` is called when a snapshot is asked for in a pause.
        """
        while True:
            with self._lock:
                orders = [*self._speeds, *filter(None, [self._order()])]
                # All of them are looked at: some ranks may know of one only.
                order = next((order for order in orders if (target := self._targets[order]) is None or finished >= target), None)
                if order is None:
                    self._committed = finished + 1
                    return
                is_agreed = self._targets[order] is not None
            if not is_agreed:
                self._agree(order)
            elif order == "stop":
                self.close()
                if not self._ends:
                    self.on_return()
                raise StopRun
            elif order in self._speeds:
                self.on_speeds(self._speeds.pop(order))
            else:
                with self._pausing(self._pause):
                    self._wait_through(order, meanwhile)

    @property
    def is_ending(self) -> bool:
        """Whether the ranks are to stop for good."""
        return self._ends

    def _order(self) -> str | None:
        """Return what the ranks are to do at the end of a step: a stop ends every pause."""
        if "stop" in self._targets:
            return "stop"
        return f"pause/{self._pause}" if self._pause > self._resumed else None

    def _wait_through(self, pause: str, meanwhile: Callable[[], None]) -> None:
        tried: set[int] = set()
        while True:
            with self._news:
                self._news.wait_for(lambda: self._order() != pause or not tried.issuperset(self._snapshots))
                if self._order() != pause:
                    return
                tried.update(self._snapshots)
            meanwhile()

    @property
    def snapshot_asked(self) -> bool:
        """Whether a snapshot will be due."""
        return bool(self._snapshots)

    def snapshot_due(self, finished: int) -> int | None:
        """Return the number of the snapshot that all ranks take here, after `finished` steps; ``None``: of none."""
        with self._lock:
            asked = [*self._snapshots]
        return next((number for number in asked if finished >= self._agree(f"snapshot/{number}")), None)

    def snapshot_done(self, number: int) -> None:
        """Say that snapshot `number` was taken, or will not be."""
        with self._lock:
            self._snapshots.remove(number)

    def all_take(self, number: int, state: str, alike: str = "") -> tuple[bool, bool]:
        """Return whether all ranks take snapshot `number` here, each in the same `state`, and whether `alike` is the same; waits for them.

        `state` is a line.
        """
        self._talk.publish(f"state/{number}", f"{state}\n{alike}")
        words = [word.partition("\n") for word in self._talk.words(f"state/{number}") or ()]
        return all(word[0] == state for word in words), all(word[2] == alike for word in words)

    def all_come(self, number: int, place: str) -> bool:
        """Return whether all ranks are at one `place` to take snapshot `number`, which wants an exchange; waits for them."""
        self._came.add(number)
        self._talk.publish(f"place/{number}", place)
        return all(word == place for word in self._talk.words(f"place/{number}") or ())

    def refuse(self, number: int) -> None:
        """Say that this rank does not take snapshot `number`, for whose word the others wait."""
        if number not in self._came:
            self._talk.publish(f"place/{number}", "")
        self._talk.publish(f"state/{number}", "")

    def _agree(self, command: str) -> int:
        """Return the step at which all ranks act; waits until all of them have the command, or it is one to pause that is over."""
        found = self._targets[command]
        if found is None:
            words = self._talk.words(command, unless=lambda: command.startswith("pause/") and command != self._order())
            if words is None:
                return _NEVER
            found = self._targets[command] = max(map(int, words))
        return found


# Whether all ranks have come to one error at one place of the cell.
#
# If they have, what spans them can still be made whole: the losses of an hour, kept as tensors, are not lost to a typo behind the
# loop, and the batch that does not fit can be looked at. A rank whose error is its own must not wait for exchanges: the others are
# on their way to the next one of theirs, where they are seen to wait.

_LIMIT = timedelta(seconds=2)  # for ranks that neither fail nor come to an exchange


def all_failed_alike(failure: Failure, talk: StoreChannel, *, step: int) -> bool:
    """Return whether every rank calls this, with the same kind of error in the same lines, at the same step, after the same exchanges.

    The message is not compared: it may tell of a rank's part of the batch. Ranks without shared memory cannot see that another waits for
    them, and are taken for different.
    """
    shared = shared_memory()
    if shared is None:
        return False
    place = repr((failure.name, [(frame.filename, frame.line) for frame in failure.frames], step, shared.number))
    return talk.all_here(f"failed/{hashlib.sha256(place.encode()).hexdigest()}", _LIMIT, unless=shared.is_awaited)
