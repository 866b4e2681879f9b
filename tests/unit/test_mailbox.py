"""What ranks of a pipeline write to each other, and when: counters in memory that others read at any time."""

from __future__ import annotations

import mmap
import os
import signal

from jupyter_dtrain.engine.comm.mailbox import counts_in


def test_a_counter_is_seen_at_what_it_was_or_is_by_another_process():
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    counts = counts_in(memory)
    counts[3] = 1
    process = os.fork()
    if not process:
        while True:
            counts[3] += 1
    try:
        before, changes = counts[3], 0
        while changes < 20_000:
            now = counts[3]
            assert now >= before
            changes += now != before
            before = now
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
