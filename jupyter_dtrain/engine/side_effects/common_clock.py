"""The time, and random bytes of the operating system: the cell's own code gets rank 0's on all ranks.

A cell that stops after a minute, or computes a learning rate from the time, has to do the same on all ranks. Rank 0 does not wait for the
others. They read the time after it, so it never goes backwards. Libraries read each rank's own clock. So does code that the ranks do not
run alike: loading of samples, calls of models, backward passes, other threads, and branches that rank 0 alone takes.
"""

from __future__ import annotations

import os
import secrets
import time
import timeit
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

from ...serialization import late_bound
from ...system.patches import patched
from .common_answers import CommonAnswers

_READ = (
    (time, ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time", "process_time_ns")),
    (timeit, ("default_timer",)),
    (uuid, ("uuid1", "uuid4")),
    (secrets, ("token_bytes", "token_hex", "token_urlsafe", "randbelow", "randbits")),
    (os, ("urandom",)),
)
_OF_NOW = ("localtime", "gmtime", "ctime")
"""Functions of ``time`` that use the present time if they are given none."""

_BETWEEN = frozenset((__file__, late_bound.__file__))
"""Files that may be between the user's code and the call."""


class CommonClock:
    """Gives all ranks the same time and the same random bytes of the system, in the cell's thread."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replace the functions that read the clock and random bytes, in the ``with`` block, which is in the cell's thread."""
        self._answers = CommonAnswers()
        now, local, write, write_c = time.time, time.localtime, time.strftime, time.asctime
        choose, below = secrets.choice, secrets.randbelow

        @wraps(write)
        def strftime(form: str, *moment: Any) -> str:
            return write(form, *(moment or (local(self._common(now)),)))

        @wraps(write_c)
        def asctime(*moment: Any) -> str:
            return write_c(*(moment or (local(self._common(now)),)))

        @wraps(choose)
        def choice(among: Any) -> Any:
            return among[self._common(below, len(among))] if len(among) else choose(among)

        with ExitStack() as stack:
            for module, names in _READ:
                for name in names:
                    stack.enter_context(patched(module, name, self._asking(getattr(module, name))))
            for name in _OF_NOW:
                stack.enter_context(patched(time, name, self._of_now(getattr(time, name), now)))
            stack.enter_context(patched(time, "strftime", strftime))
            stack.enter_context(patched(time, "asctime", asctime))
            stack.enter_context(patched(secrets, "choice", choice))
            yield

    def _asking(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(ask)
        def asked(*args: Any, **kwargs: Any) -> Any:
            return self._common(ask, *args, **kwargs)

        return asked

    def _of_now(self, tell: Callable[..., Any], now: Callable[[], float]) -> Callable[..., Any]:
        @wraps(tell)
        def told(moment: float | None = None) -> Any:
            return tell(self._common(now) if moment is None else moment)

        return told

    def _common(self, ask: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return the result of `ask`: that of rank 0, where all ranks ask in the cell's own code."""
        own = ask(*args, **kwargs)  # which raises the same on all of them
        return self._answers.same(own) if self._answers.all_ask(through=_BETWEEN) else own
