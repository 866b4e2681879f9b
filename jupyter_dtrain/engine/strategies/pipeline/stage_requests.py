"""What the ranks of the stages ask of each other, in phases that all of them begin and end together.

A rank that waits, for an answer or for the others, does meanwhile what is asked of it. What belongs to the next phase waits for that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ....errors import picklable
from ...comm.mailbox import Mailbox
from .handed_values import NotSent
from .pieces import Key


class StageRequests:
    """What this rank asks of others, and answers.

    Parameters
    ----------
    mailbox : Mailbox
        Connects it with the ranks of the other stages, numbered by these.
    answer : callable
        Given the kind of a request, the rank it is from, what it is about and its tensors: returns an answer and tensors.
    drop : callable
        Given a rank and the key of a piece whose graph is no more there.
    """

    def __init__(
        self, mailbox: Mailbox, *, answer: Callable[[str, int, Any, list[torch.Tensor]], Any], drop: Callable[[int, Key], None]
    ) -> None:
        self._mailbox, self._answer, self._drop = mailbox, answer, drop
        self.rank, self._others = mailbox.rank, [rank for rank in range(mailbox.num_ranks) if rank != mailbox.rank]
        self._phase = 0
        self._done: dict[tuple[int, ...], set[int]] = {}  # by the phase, or the phase and a call in it
        self._replies: dict[int, tuple[Any, list[torch.Tensor]]] = {}
        self._requests: deque[tuple[int, Any, list[torch.Tensor]]] = deque()
        self._asked = 0

    @property
    def num_bytes(self) -> int:
        """How many bytes were sent."""
        return self._mailbox.num_bytes

    def begin(self) -> None:
        """Begin what all ranks do together, and compute for each other in."""
        self._phase += 1
        self._done.setdefault((self._phase,), set())  # others may have done with it already

    def meet(self, *call: int) -> None:
        """Wait until all ranks have come to the end of the phase, or of a call's part of it, and compute for them meanwhile."""
        what = (self._phase, *call)
        for rank in self._others:
            self._mailbox.send(rank, ("done", what))
        whole, own = self._done[self._phase,], self._done.setdefault(what, set())
        self._mailbox.wait(self._work, lambda: len(own | whole) == len(self._others))
        del self._done[what]

    def let_others_ask(self, call: int, ranks: Callable[[], Sequence[int]]) -> None:
        """Compute for others until `ranks` are none, but those that have done with the phase, or with the part of it that is of a call."""

        def is_over() -> bool:
            gone = self._done[self._phase,] | self._done.get((self._phase, call), set())
            return gone.issuperset(ranks())

        self._mailbox.wait(self._work, is_over)

    def _work(self) -> None:
        """Take in what has come, and do what is asked for now; what belongs to what comes next waits."""
        while True:
            for rank, message, tensors in self._mailbox.received():
                kind, *rest = message
                if kind == "done":
                    self._done.setdefault(rest[0], set()).add(rank)
                elif kind == "reply":
                    self._replies[rest[0]] = rest[1], tensors
                elif kind == "drop":
                    self._drop(rank, rest[0])
                else:
                    self._requests.append((rank, message, tensors))
            index = next((index for index, (_, message, _) in enumerate(self._requests) if message[2] == self._phase), None)
            if index is None:
                return
            rank, message, tensors = self._requests[index]
            del self._requests[index]
            self._reply(rank, message, tensors)

    def ask(self, stage: int, kind: str, what: Any, tensors: Sequence[torch.Tensor]) -> tuple[Any, list[torch.Tensor]]:
        """Let the rank of a stage do something, and return its answer; compute for others meanwhile."""
        self._asked += 1
        number = self._asked
        self._mailbox.send(stage, (kind, number, self._phase, what), tensors)
        self._mailbox.wait(self._work, lambda: number in self._replies)
        answer, found = self._replies.pop(number)
        if isinstance(answer, Exception):
            raise answer
        return answer, found

    def _reply(self, rank: int, message: Any, tensors: list[torch.Tensor]) -> None:
        kind, number, _, what = message
        answer: Any
        try:
            answer, found = self._answer(kind, rank, what, tensors)
        except NotSent as why:
            answer, found = str(why), []
        except Exception as error:
            answer, found = picklable(error, RuntimeError), []
        self._mailbox.send(rank, ("reply", number, answer), found)

    def tell_drop(self, stage: int, key: Key) -> None:
        """Let the rank of a stage drop a piece."""
        self._mailbox.send(stage, ("drop", key))

    def finish(self) -> None:
        """Forget who has done with what was part of the phase."""
        self._done = {what: ranks for what, ranks in self._done.items() if what[0] > self._phase}
