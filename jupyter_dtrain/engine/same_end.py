"""Whether all ranks have come to one error at one place of the cell.

If they have, what spans them can still be made whole: the losses of an hour, kept as tensors, are not lost to a typo behind the
loop, and the batch that does not fit can be looked at. A rank whose error is its own must not wait for exchanges: the others are
on their way to the next one of theirs, where they are seen to wait.
"""

from __future__ import annotations

import hashlib
from datetime import timedelta

from .cell import Failure
from .ranks.process_group import near
from .ranks.talk import Talk

_LIMIT = timedelta(seconds=2)  # for ranks that neither fail nor come to an exchange


def all_failed_alike(failure: Failure, talk: Talk, *, step: int) -> bool:
    """Return whether every rank calls this, with the same kind of error in the same lines, at the same step, after the same exchanges.

    The message is not compared: it may tell of a rank's part of the batch. Ranks without shared memory cannot see that another waits for
    them, and are taken for different.
    """
    shared = near()
    if shared is None:
        return False
    place = repr((failure.name, [(frame.filename, frame.line) for frame in failure.frames], step, shared.number))
    return talk.all_here(f"failed/{hashlib.sha256(place.encode()).hexdigest()}", _LIMIT, unless=shared.is_awaited)
