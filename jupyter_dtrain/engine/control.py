"""Commands that take effect at the same step on every rank, without a collective for each step.

Data-parallel ranks are in lockstep to within one step: one may have finished step *n* while another is still in it. When a command arrives,
each rank posts the step that it is committed to (the one in progress) in the group's store, and starts no further step until all have
posted. All ranks act at the highest of these steps; ranks below it run on to it. Without a command, a step only checks a flag.

A pause is such a command: ranks wait at the first boundary of the agreed step, which is the same place on all of them. So no rank waits in
a collective, which would time out. New shares of the batches are another: all ranks switch to the new division at the same batch.
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
    """Ends the cell at the end of a step. Not an ``Exception``, so that the cell's own handlers do not catch it."""


class Control:
    """Handles the commands to one rank.

    Parameters
    ----------
    talk : StoreChannel
        Lets the ranks agree.
    pausing : callable
        Given the number of a pause, returns the context manager in which the rank waits.

    Attributes
    ----------
    on_speeds : callable
        Called with the ranks' speeds when batches are to be divided by them from now on.
    on_return : callable
        Called just before :class:`StopRun` is raised, if the run will resume from a checkpoint.
    """

    def __init__(self, talk: StoreChannel, *, pausing: Callable[[int], AbstractContextManager[None]] = lambda _: nullcontext()) -> None:
        self._talk, self._pausing = talk, pausing
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._committed = 0  # the step in progress, or the next one if none is
        self._targets: dict[str, int | None] = {}  # of given commands; ``None``: not agreed yet
        self._snapshots: list[int] = []  # requested and not yet taken
        self._came: set[int] = set()  # for which this rank has published its place
        self.on_speeds: Callable[[Sequence[float]], None] = lambda _: None
        self.on_return: Callable[[], None] = lambda: None
        self._ends = False  # whether the user asked for the stop
        self._speeds: dict[str, Sequence[float]] = {}  # ordered and not yet in force, by order
        self._pause = 0  # number of the last requested pause
        self._resumed = 0  # number of the last pause that is over

    def take(self, order: Order) -> None:
        """Accept an order of the notebook kernel. Called from the engine's control thread, also after the cell's end."""
        # Record an order before posting: the cell must not pass the posted step without seeing the order.
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
        """Announce that this rank goes no further, so that no other rank waits for its step or for its answer about a snapshot.

        In a pause, other ranks may hear of a snapshot before they hear of the stop that ends the pause.
        """
        with self._lock:
            self._committed = _NEVER
            self._ask("stop")
            asked = [*self._snapshots]
        for number in asked:
            self.refuse(number)

    def release(self) -> None:
        """Drop references to the cell's objects, since only answers to other ranks remain."""
        self._pausing, self.on_speeds, self.on_return = lambda _: nullcontext(), lambda _: None, lambda: None

    def boundary(self, finished: int, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Announce that `finished` steps are done and the next has not begun; act on commands that are due.

        Parameters
        ----------
        finished : int
        meanwhile : callable
            Called when a snapshot is requested during a pause.

        Raises
        ------
        StopRun
            The ranks stop at this step.
        """
        while True:
            with self._lock:
                orders = [*self._speeds, *filter(None, [self._order()])]
                # Check all orders, as some ranks may know of only one.
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
        """Whether the ranks will stop for good."""
        return self._ends

    def _order(self) -> str | None:
        """Return the command for the end of a step, if any; a stop overrides every pause."""
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
        """Whether a snapshot has been requested."""
        return bool(self._snapshots)

    def snapshot_due(self, finished: int) -> int | None:
        """Return the number of the snapshot that all ranks take here, after `finished` steps; ``None`` if none is due."""
        with self._lock:
            asked = [*self._snapshots]
        return next((number for number in asked if finished >= self._agree(f"snapshot/{number}")), None)

    def snapshot_done(self, number: int) -> None:
        """Remove snapshot `number` from the requests, whether it was taken or not."""
        with self._lock:
            self._snapshots.remove(number)

    def all_take(self, number: int, state: str, alike: str = "") -> tuple[bool, bool]:
        """Wait for all ranks; return whether all take snapshot `number` here in the same `state`, and whether `alike` is equal on all.

        `state` must be a single line.
        """
        self._talk.publish(f"state/{number}", f"{state}\n{alike}")
        words = [word.partition("\n") for word in self._talk.words(f"state/{number}") or ()]
        return all(word[0] == state for word in words), all(word[2] == alike for word in words)

    def all_come(self, number: int, place: str) -> bool:
        """Wait for all ranks; return whether all are at the same `place`, to exchange data for snapshot `number`."""
        self._came.add(number)
        self._talk.publish(f"place/{number}", place)
        return all(word == place for word in self._talk.words(f"place/{number}") or ())

    def refuse(self, number: int) -> None:
        """Announce that this rank does not take snapshot `number`, for whose answer the others wait."""
        if number not in self._came:
            self._talk.publish(f"place/{number}", "")
        self._talk.publish(f"state/{number}", "")

    def _agree(self, command: str) -> int:
        """Wait until all ranks have posted `command`, and return the step at which they act; for a finished pause, one never reached."""
        found = self._targets[command]
        if found is None:
            words = self._talk.words(command, unless=lambda: command.startswith("pause/") and command != self._order())
            if words is None:
                return _NEVER
            found = self._targets[command] = max(map(int, words))
        return found


# Whether all ranks have raised the same error at the same place of the cell.
#
# If so, tensors that span the ranks can still be gathered: losses kept as tensors for an hour are not lost to a typo after the loop, and a
# batch that does not fit can be inspected. A rank with an error of its own must not wait for exchanges: the other ranks continue to their
# next exchange and are seen waiting there.

_LIMIT = timedelta(seconds=2)  # longest wait for ranks that neither fail nor reach an exchange


def all_failed_alike(failure: Failure, talk: StoreChannel, *, step: int) -> bool:
    """Return whether every rank calls this with the same error type in the same lines, at the same step and after as many exchanges.

    The message is not compared, as it may describe a rank's share. Ranks without shared memory cannot see that another rank waits for them,
    so the result is false.
    """
    shared = shared_memory()
    if shared is None:
        return False
    place = repr((failure.name, [(frame.filename, frame.line) for frame in failure.frames], step, shared.number))
    topic = f"failed/{hashlib.sha256(place.encode()).hexdigest()}"
    return talk.all_here(topic, _LIMIT, unless=lambda: talk.is_aborted or shared.is_awaited())
