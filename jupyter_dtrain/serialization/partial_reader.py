"""Read the graphs of one stream separately, so that an unreadable one loses only itself and graphs that share objects with it.

All graphs share the pickle memo, whose numbers they use to refer to each other's objects. A graph that fails halfway would shift these
numbers. So the reader counts the memo entries that the graph would have made, and fills them with a placeholder.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from .pickler import Packed
from .unpickler import Unpacker

_TEXTS = frozenset(("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8"))
_FROM_MEMO = frozenset(("BINGET", "LONG_BINGET"))


class UnreadableError(Exception):
    """The reason why a graph cannot be read."""


class Pieces:
    """Read what a :class:`Packer` wrote, graph by graph.

    Parameters
    ----------
    packed : Packed
    options
        Passed to :class:`Unpacker`.
    """

    def __init__(self, packed: Packed, **options: Any) -> None:
        self._packed, self._options = packed, options
        self._reader = Unpacker(packed, **options)
        self._before = 0  # bytes of the whole stream before the reader's own
        self._counted = (0, 0)  # a position in the stream, and the size of the memo there
        self._gap = object()
        self._uses: int | None = None  # reference count of the placeholder while only the memo refers to it

    def read(self) -> Any:
        """Return the next graph.

        Raises
        ------
        UnreadableError
            The graph cannot be read. The next call reads the one after it.
        """
        start = self._before + self._reader.file.tell()
        found, reason = None, ""
        try:
            found = self._reader.load()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        if self._uses is not None and sys.getrefcount(self._gap) > self._uses and not reason:
            reason = "it has something in common with what cannot be read"
        if reason:
            del found
            self._skip(start)
            raise UnreadableError(reason)
        return found

    def _skip(self, start: int) -> None:
        """Continue after the graph that begins at `start`, as if none of its objects could be read."""
        while self._counted[0] < start:
            self._counted = self._graph_end(*self._counted, {})
        _, size = self._counted
        before, memo = self._reader, cast("Any", self._reader.memo.copy())
        memo = {number: memo[number] for number in range(size)}
        end, size_there = self._counted = self._graph_end(start, size, memo)
        filled = [memo.get(number, self._gap) for number in range(size_there)]
        self._reader = _Following(replace(self._packed, stream=self._packed.stream[end:]), filled, before, **self._options)
        before.memo.clear()  # in case something still refers to the reader
        self._before = end - self._reader.file.tell()
        del memo, filled
        self._uses = sys.getrefcount(self._gap)

    def _graph_end(self, position: int, number: int, memo: dict[int, Any]) -> tuple[int, int]:
        """Return the end of the graph at `position`, and the size of the memo there, given its size `number` before.

        Texts and objects found by module and name, which need no other object, are put into `memo`.
        """
        file = io.BytesIO(self._packed.stream)
        file.seek(position)
        pushed: deque[Any] = deque([None, None], maxlen=2)
        for operation, argument, _ in pickletools.genops(file):
            if operation.name == "MEMOIZE":
                if pushed[-1] is not None:
                    memo[number] = pushed[-1]
                number += 1
            elif operation.name in _TEXTS:
                pushed.append(argument)
            elif operation.name in _FROM_MEMO:
                pushed.append(memo.get(cast("int", argument)))
            elif operation.name == "STACK_GLOBAL":
                pushed.append(self._named(*pushed))
            else:
                pushed.append(None)
        return file.tell(), number

    def _named(self, module: Any, name: Any) -> Any:
        try:
            return self._reader.find_class(module, name)
        except Exception:  # a missing name may be the reason why the graph cannot be read
            return None


class _Following(Unpacker):
    """Continue where another unpickler stopped, with a given memo: Python 3.14 ignores a dict that is assigned to `memo`."""

    def __init__(self, packed: Packed, memo: Sequence[object], before: Unpacker, **options: Any) -> None:
        one_by_one = (
            pickle.BININT + number.to_bytes(4, "little") + pickle.BINPERSID + pickle.MEMOIZE + pickle.POP for number in range(len(memo))
        )
        filling = pickle.PROTO + b"\5" + b"".join(one_by_one) + pickle.NONE + pickle.STOP
        super().__init__(replace(packed, stream=filling + packed.stream), **options)
        self.follow(before)
        self._filling = memo
        self.load()
        self._filling = ()

    def persistent_load(self, pid: Any) -> object:
        return self._filling[pid] if isinstance(pid, int) else super().persistent_load(pid)
