"""Requests between the ranks of stages, in phases that all ranks begin and end together.

A phase is a model's call or a backward pass. A rank that waits for a reply or for the others answers requests meanwhile. A request of the
next phase is deferred until this rank has begun that phase.
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
    """Sends requests to the ranks of other stages, and answers theirs.

    Parameters
    ----------
    mailbox : Mailbox
        Connects this rank with one rank of each other stage. Its ranks are the numbers of the stages.
    answer : callable
        Called with the kind of a request, the requesting rank, the request's content and tensors. Returns an answer and tensors.
    drop : callable
        Called with a rank and the key of a piece whose graph that rank has freed.
    """

    def __init__(
        self, mailbox: Mailbox, *, answer: Callable[[str, int, Any, list[torch.Tensor]], Any], drop: Callable[[int, Key], None]
    ) -> None:
        self._mailbox, self._answer, self._drop = mailbox, answer, drop
        self.rank, self._others = mailbox.rank, [rank for rank in range(mailbox.num_ranks) if rank != mailbox.rank]
        self._phase = 0
        self._done: dict[tuple[int, ...], set[int]] = {}  # key: the phase, or the phase and a call within it
        self._replies: dict[int, tuple[Any, list[torch.Tensor]]] = {}
        self._requests: deque[tuple[int, Any, list[torch.Tensor]]] = deque()
        self._asked = 0

    @property
    def num_bytes(self) -> int:
        """The number of bytes sent."""
        return self._mailbox.num_bytes

    def begin(self) -> None:
        """Start a phase, in which ranks compute for each other."""
        self._phase += 1
        self._done.setdefault((self._phase,), set())  # other ranks may have finished it already

    def meet(self, *call: int) -> None:
        """Wait until all ranks have finished the phase, or the part of it that belongs to a call, and compute for them meanwhile."""
        what = (self._phase, *call)
        for rank in self._others:
            self._mailbox.send(rank, ("done", what))
        whole, own = self._done[self._phase,], self._done.setdefault(what, set())
        self._mailbox.wait(self._work, lambda: len(own | whole) == len(self._others))
        del self._done[what]

    def let_others_ask(self, call: int, ranks: Callable[[], Sequence[int]]) -> None:
        """Compute for others until `ranks` returns only ranks that have finished the phase, or the part of it that belongs to `call`."""

        def is_over() -> bool:
            gone = self._done[self._phase,] | self._done.get((self._phase, call), set())
            return gone.issuperset(ranks())

        self._mailbox.wait(self._work, is_over)

    def _work(self) -> None:
        """Receive messages, and answer the requests of this phase. Those of the next phase are deferred."""
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
        """Send a request to the rank of a stage and return its answer. Computes for others while it waits."""
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
        """Tell the rank of a stage to drop a piece."""
        self._mailbox.send(stage, ("drop", key))

    def finish(self) -> None:
        """Discard the finished phases."""
        self._done = {what: ranks for what, ranks in self._done.items() if what[0] > self._phase}
