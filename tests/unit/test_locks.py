"""Locks and what holds some, on their way to an engine: as new where they are free, refused where a thread has them."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.unit.test_pickling import sent


class Meter:
    def __init__(self) -> None:
        self.lock, self.again, self.items = threading.Lock(), threading.RLock(), queue.Queue[int]()
        self.changed = threading.Condition(self.lock)


@pytest.mark.parametrize("made", [threading.Lock, threading.RLock, threading.Condition, threading.Semaphore, threading.BoundedSemaphore])
def test_a_free_lock_can_be_taken_there(made):
    lock = made()
    copy = sent(lock)
    assert type(copy) is type(lock)
    assert copy is not lock
    with copy:
        assert lock.acquire(blocking=False)


@pytest.mark.parametrize("made", [threading.Lock, threading.RLock])
def test_a_lock_that_is_held_is_refused_and_stays_held(made):
    lock = made()
    with lock, pytest.raises(TypeError, match="cannot pickle a lock that is held"):
        sent([lock])
    assert lock.acquire(blocking=False)


@pytest.mark.parametrize("made", [queue.Queue, queue.LifoQueue, queue.PriorityQueue, queue.SimpleQueue])
def test_a_queue_has_its_items_there_and_here(made):
    items: Any = made()
    for item in (1, 2):
        items.put(item)
    copy = sent(items)
    copy.put(3)
    assert sorted(copy.get_nowait() for _ in range(copy.qsize())) == [1, 2, 3]
    assert items.qsize() == 2


def test_an_event_that_is_set_is_set_there():
    event = threading.Event()
    event.set()
    assert sent(event).wait(0)


def test_what_one_lock_is_for_shares_it_there():
    meter = sent(Meter())
    assert meter.changed._lock is meter.lock
    assert meter.items.mutex is meter.items.not_empty._lock
    with meter.changed:
        meter.changed.notify_all()


def test_what_a_thread_keeps_for_itself_is_that_of_the_one_that_sends():
    kept = threading.local()
    kept.number = 3
    assert sent(kept).number == 3


def test_a_pool_without_threads_works_there():
    with sent(ThreadPoolExecutor(1)) as pool:
        assert pool.submit(int, "3").result(10) == 3
