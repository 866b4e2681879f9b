"""What the system tells of writes to memory. Where it tells nothing, everything counts as written."""

import mmap
import os
import tempfile

import numpy as np
import pytest

from jupyter_dtrain.system import dirty_pages
from jupyter_dtrain.system.dirty_pages import Watch

LENGTH = 1 << 21

tells = pytest.mark.skipif(dirty_pages._descriptor() is None, reason="this system does not tell of writes to memory")


def own():
    return mmap.mmap(-1, LENGTH, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def place(array):
    return array.ctypes.data, array.nbytes


@pytest.fixture
def memory():
    """Memory of one's own: written to at its beginning, the rest never."""
    array = np.frombuffer(own(), np.uint8)
    array[: LENGTH // 2] = 1
    return array


@tells
@pytest.mark.parametrize("where", [0, 1, LENGTH // 2 - 1, LENGTH // 2, LENGTH - 1])
def test_a_write_is_seen_wherever_it_is(memory, where):
    (watch,) = Watch.over([place(memory)])
    assert memory.sum() == LENGTH // 2
    assert watch.is_unwritten()
    memory[where] = 1
    assert not watch.is_unwritten()
    (again,) = Watch.over([place(memory)])
    assert again.is_unwritten()
    assert not watch.is_unwritten(), "it was written to since this one began"


@tells
def test_what_lies_in_the_same_pages_may_be_written_to(memory):
    data = memory[100 : LENGTH // 2 - 100]
    (watch,) = Watch.over([place(data)])
    memory[:100] = 3
    memory[LENGTH // 2 - 100 :] = 3
    assert watch.is_unwritten()


@tells
@pytest.mark.parametrize("where", [0, 4000, 5000, -5000, -4000, -1])
def test_a_write_is_seen_in_pages_that_hold_other_things_too(memory, where):
    data = memory[100 : LENGTH // 2 - 100]
    (watch,) = Watch.over([place(data)])
    assert watch.is_unwritten()
    data[where] = 2
    assert not watch.is_unwritten()


def test_less_than_a_page_is_not_watched(memory):
    (watch,) = Watch.over([place(memory[100 : mmap.PAGESIZE])])
    assert not watch.is_unwritten()


@tells
def test_what_the_system_itself_writes_is_seen(memory):
    (watch,) = Watch.over([place(memory)])
    with tempfile.TemporaryFile() as file:
        file.write(b"data")
        file.seek(0)
        os.readv(file.fileno(), [memory[100:104].data])
    assert not watch.is_unwritten()


@tells
def test_ranges_may_overlap_and_each_knows_its_own_beginning(memory):
    (whole,) = Watch.over([place(memory)])
    memory[10] = 7
    first, second = Watch.over([place(memory[: LENGTH // 2]), place(memory[LENGTH // 2 :])])
    assert not whole.is_unwritten()
    memory[-1] = 7
    assert (whole.is_unwritten(), first.is_unwritten(), second.is_unwritten()) == (False, True, False)


@tells
def test_memory_that_was_freed_and_is_another_now_counts_as_written():
    mapped = own()
    address = np.frombuffer(mapped, np.uint8).ctypes.data
    (watch,) = Watch.over([(address, LENGTH)])
    assert watch.is_unwritten()
    mapped.close()
    others = [own() for _ in range(4)]
    assert address in [np.frombuffer(other, np.uint8).ctypes.data for other in others], "one of them has its place"
    assert not watch.is_unwritten()


@tells
def test_memory_of_which_the_end_alone_was_freed_counts_as_written():
    mapped = own()
    address = np.frombuffer(mapped, np.uint8).ctypes.data
    (watch,) = Watch.over([(address, LENGTH - 100)])
    assert watch.is_unwritten()
    mapped.resize(LENGTH - mmap.PAGESIZE)
    assert not watch.is_unwritten()


@tells
def test_pages_that_were_given_back_count_as_written():
    mapped = own()
    array = np.frombuffer(mapped, np.uint8)
    array[:] = 1
    (watch,) = Watch.over([place(array)])
    assert watch.is_unwritten()
    mapped.madvise(mmap.MADV_DONTNEED, LENGTH // 2, mmap.PAGESIZE)
    assert not watch.is_unwritten()
    assert array.sum() == LENGTH - mmap.PAGESIZE


def test_what_others_can_write_to_is_not_watched(memory):
    with tempfile.TemporaryFile() as file:
        file.write(bytes(LENGTH))
        file.flush()
        shared = np.memmap(file, np.uint8, "r+")
        private = np.memmap(file, np.uint8, "c")
        watches = Watch.over([place(shared), place(private)])
        assert [watch.is_unwritten() for watch in watches] == [False, False]


@tells
def test_a_fork_knows_nothing_and_does_no_harm(memory):
    (watch,) = Watch.over([place(memory)])
    child = os.fork()
    if not child:
        new = Watch.over([place(memory)])[0]
        memory[0] = 5
        os._exit(watch.is_unwritten() or new.is_unwritten())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert watch.is_unwritten()
    assert memory[0] == 1


@tells
def test_one_that_has_ended_knows_nothing(memory):
    (watch,) = Watch.over([place(memory)])
    watch.end()
    assert not watch.is_unwritten()
    memory[0] = 3


def test_without_the_system_everything_counts_as_written(memory, monkeypatch):
    monkeypatch.setattr(dirty_pages, "_descriptor", lambda: None)
    (watch,) = Watch.over([place(memory)])
    assert not watch.is_unwritten()
    watch.end()
