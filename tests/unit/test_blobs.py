"""Buffers by content: stored once, whole or not at all, mapped privately."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from jupyter_dtrain.errors import ClusterError
from jupyter_dtrain.system import atomic_files
from jupyter_dtrain.system.dirty_pages import Watch
from jupyter_dtrain.system.resources import OVERFLOW
from jupyter_dtrain.transport import blob_store as module
from jupyter_dtrain.transport.blob_store import BlobFolder, bytes_of, key_of
from jupyter_dtrain.transport.sending import Sending
from jupyter_dtrain.transport.unhashed import OWN, UnhashedBuffers


@pytest.fixture
def blobs(tmp_path):
    return BlobFolder(tmp_path / "blobs")


def view(content: bytes) -> memoryview:
    return memoryview(content)


def names(blobs: BlobFolder) -> set[str]:
    return {path.name for path in blobs.path.iterdir()}


def test_equal_bytes_are_stored_once(blobs):
    keys = blobs.put_all([view(b"a" * 100), view(b"b" * 100), np.full(100, ord("a"), np.uint8).data])
    assert keys[0] == keys[2] != keys[1]
    assert names(blobs) == set(keys)
    assert bytes(blobs.open(keys[0])) == b"a" * 100
    assert bytes(blobs.open(keys[1])) == b"b" * 100


def test_keys_tell_contents_apart():
    contents = [b"", b"\0", b"\0\0", b"ab", b"ba", b"a" * 1000, b"a" * 999 + b"b"]
    assert len({key_of(view(content)) for content in contents}) == len(contents)
    assert key_of(view(b"ab")) == key_of(memoryview(bytearray(b"ab")))


def test_what_is_there_is_not_written_again(blobs):
    key = blobs.put(view(b"x" * 50))
    inode = (blobs.path / key).stat().st_ino
    os.utime(blobs.path / key, (1, 1))
    assert blobs.put(view(b"x" * 50)) == key
    assert (blobs.path / key).stat().st_ino == inode
    assert (blobs.path / key).stat().st_mtime > 1, "used a moment ago"


def test_nothing_is_a_buffer_too(blobs):
    key = blobs.put(view(b""))
    assert blobs.open(key).nbytes == 0


def test_writes_are_seen_by_nobody_else(blobs):
    key = blobs.put(view(bytes(5000)))
    first, second = blobs.open(key), blobs.open(key)
    first[0] = first[4999] = 7
    assert (first[0], first[4999]) == (7, 7)
    assert (second[0], second[4999]) == (0, 0)
    assert bytes(blobs.open(key)) == bytes(5000)
    assert (blobs.path / key).read_bytes() == bytes(5000)


def test_what_is_missing(blobs):
    key = blobs.put(view(b"x"))
    assert blobs.missing([key, "other"]) == ["other"]
    with pytest.raises(FileNotFoundError):
        blobs.open("other")


def test_what_is_mapped_outlives_its_file(blobs):
    key = blobs.put(view(b"x" * 5000))
    mapped = blobs.open(key)
    blobs.discard([key, "never there"])
    assert names(blobs) == set()
    assert bytes(mapped) == b"x" * 5000


def test_a_full_disk_leaves_no_part_behind(blobs, monkeypatch):
    class Full:
        def __init__(self, handle: int, _mode: str) -> None:
            self.handle = handle

        def __enter__(self):
            return self

        def __exit__(self, *_: object) -> None:
            os.close(self.handle)

        def write(self, buffer: memoryview) -> None:
            os.write(self.handle, buffer[:10])
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("jupyter_dtrain.transport.blob_store.os.fdopen", Full)
    with pytest.raises(OSError, match="No space left"):
        blobs.put(view(b"x" * 100))
    assert names(blobs) == set()
    monkeypatch.undo()
    assert bytes(blobs.open(blobs.put(view(b"x" * 100)))) == b"x" * 100


def test_unused_buffers_make_room_for_others(blobs, monkeypatch):
    """The file system has room for two buffers."""
    real = os.fdopen

    def fdopen(handle, mode):
        if len([name for name in names(blobs) if not name.startswith(".")]) == 2:
            os.close(handle)
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(handle, mode)

    monkeypatch.setattr(os, "fdopen", fdopen)
    blobs.put_all([view(b"1"), view(b"2")])
    keys = blobs.put_all([view(b"3"), view(b"2")])
    assert names(blobs) == set(keys)
    with pytest.raises(ClusterError, match=r"has no room for the cell's values \(3 B\). Make large data inside the cell"):
        blobs.put_all([view(b"4"), view(b"5"), view(b"6")])
    assert not [name for name in names(blobs) if name.startswith(".")]  # no parts are left


@pytest.fixture
def full(blobs, tmp_path, monkeypatch):
    """A folder in shared memory that has no room, and the one on a disk for what it refuses."""
    real = os.fdopen

    def fdopen(handle, mode):
        if Path(f"/proc/self/fd/{handle}").readlink().parent == blobs.path:
            os.close(handle)
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(handle, mode)

    monkeypatch.setattr(os, "fdopen", fdopen)
    overflow = tmp_path / "overflow"
    overflow.mkdir()
    (blobs.path / OVERFLOW).symlink_to(overflow)
    return overflow


def test_what_finds_no_room_lies_on_the_disk(blobs, full, monkeypatch):
    keys = blobs.put_all([view(b"1" * 100), view(b"2" * 100)])
    assert [bytes(blobs.open(key)) for key in keys] == [b"1" * 100, b"2" * 100]
    assert {path.name for path in full.iterdir()} == set(keys)
    assert not blobs.missing(keys)
    assert blobs.put_all([view(b"2" * 100), view(b"3" * 100)], lambda done, total: None)[0] == keys[1]
    assert {path.name for path in full.iterdir()} == {keys[1], key_of(view(b"3" * 100))}, "what is used no more makes room"
    copy = BlobFolder(blobs.path.parent / "copy", [blobs.path])
    monkeypatch.undo()
    copy.write(keys[1], blobs.open(keys[1]))
    blobs.trim(keep=[], limit=1000)
    assert names(blobs) == {OVERFLOW}
    assert not list(full.iterdir())
    assert bytes(copy.open(keys[1])) == b"2" * 100


def test_another_folder_takes_over_what_lies_on_the_disk_too(blobs, full, tmp_path, monkeypatch):
    on_disk = blobs.put(view(b"1" * 100))
    monkeypatch.undo()
    here = blobs.put(view(b"2" * 100))
    new = BlobFolder(tmp_path / "new")
    (new.path / OVERFLOW).symlink_to(tmp_path / "new overflow")
    (tmp_path / "new overflow").mkdir()
    new.inherit(blobs.path)
    shutil.rmtree(blobs.path)
    shutil.rmtree(full)
    assert [bytes(new.open(key)) for key in (on_disk, here)] == [b"1" * 100, b"2" * 100]


def test_what_is_mapped_takes_no_file_descriptor(blobs):
    keys = blobs.put_all([view(bytes([number]) * 5000) for number in range(50)])
    before = psutil.Process().num_fds()
    mapped = [blobs.open(key) for key in keys]
    assert psutil.Process().num_fds() == before
    assert [buffer[4999] for buffer in mapped] == list(range(50))


def test_readers_never_see_a_part(blobs):
    """One thread writes and removes, the other reads whenever the file is there."""
    content = bytes(range(256)) * 4096
    key = key_of(view(content))
    done = threading.Event()
    lengths: list[int] = []

    def read() -> None:
        while not done.is_set():
            try:
                lengths.append(len((blobs.path / key).read_bytes()))
            except FileNotFoundError:
                continue

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(100):
        blobs.write(key, view(content))
        blobs.discard([key])
    for _ in range(1000):  # the reader may have had no turn yet
        blobs.write(key, view(content))
        if lengths:
            break
    done.set()
    reader.join(timeout=10)
    assert lengths
    assert set(lengths) == {len(content)}


def test_a_buffer_removed_while_it_is_looked_for_is_written_again(blobs, monkeypatch):
    key = blobs.put(view(b"x" * 10))
    utime = os.utime

    def removed_just_before(path: Path) -> None:
        blobs.discard([key])
        utime(path)

    monkeypatch.setattr("jupyter_dtrain.transport.blob_store.os.utime", removed_just_before)
    assert blobs.put(view(b"x" * 10)) == key
    assert (blobs.path / key).read_bytes() == b"x" * 10


# -- room ------------------------------------------------------------------------------------------------------------


def stored(blobs: BlobFolder, contents: list[bytes]) -> list[str]:
    """Store buffers, each used a second after the one before it."""
    keys = [blobs.put(view(content)) for content in contents]
    for age, key in enumerate(keys):
        os.utime(blobs.path / key, (1000 + age, 1000 + age))
    return keys


def test_the_least_recently_used_go_first(blobs):
    keys = stored(blobs, [bytes([n]) * 100 for n in range(5)])
    blobs.put(view(bytes([1]) * 100))  # used again
    blobs.trim(keep=[], limit=250)
    assert names(blobs) == {keys[1], keys[4]}


def test_as_few_as_possible_go(blobs):
    keys = stored(blobs, [b"a" * 100, b"b" * 10, b"c" * 100])
    blobs.trim(keep=[], limit=210)
    assert names(blobs) == set(keys)
    blobs.trim(keep=[], limit=209)
    assert names(blobs) == set(keys[1:])


def test_what_is_in_use_stays_whatever_the_limit(blobs):
    keys = stored(blobs, [bytes([n]) * 100 for n in range(4)])
    blobs.trim(keep=[keys[0], "never there"], limit=150)
    assert names(blobs) == {keys[0]}
    blobs.trim(keep=keys, limit=0)
    assert names(blobs) == {keys[0]}
    blobs.trim(keep=[], limit=0)
    assert names(blobs) == set()


def test_a_part_that_is_being_written_is_left_alone(blobs):
    part = blobs.path / ".part-x"
    part.write_bytes(b"x" * 1000)
    blobs.trim(keep=[], limit=0)
    assert names(blobs) == {".part-x"}


def test_the_folder_is_the_users_own(tmp_path):
    path = tmp_path / "a" / "blobs"
    assert stat.S_IMODE(BlobFolder(path).path.stat().st_mode) == 0o700
    assert BlobFolder(path).path == path, "and may be there already"


def test_what_lies_in_other_folders_is_linked_and_outlives_them(tmp_path):
    others = [BlobFolder(tmp_path / name) for name in ("1", "2")]
    keys = [folder.put(memoryview(content)) for folder, content in zip(others, (b"of the first", b"of the second"), strict=True)]
    after = BlobFolder(tmp_path / "3", [tmp_path / "none", *(folder.path for folder in others)])
    assert after.put_all([view(b"of the first"), view(b"of the second")]) == keys
    for folder, key in zip(others, keys, strict=True):
        assert (folder.path / key).samefile(after.path / key)
        shutil.rmtree(folder.path)
    new = after.put(memoryview(b"new"))
    assert [bytes(after.open(key)) for key in (*keys, new)] == [b"of the first", b"of the second", b"new"]


# -- without a hash ----------------------------------------------------------------------------------------------------


@pytest.fixture
def unhashed(tmp_path, monkeypatch):
    """A folder that hashes nothing above 64 KiB."""
    monkeypatch.setattr(module, "key_of", lambda _: pytest.fail("hashed"))
    return BlobFolder(tmp_path / "blobs", hashed=1 << 16)


def test_a_large_buffer_is_stored_once_as_long_as_it_is_the_same(unhashed):
    data = np.arange(50_000_000 // 8)
    (key,) = unhashed.put_all([data.data])
    assert key.startswith(OWN)
    assert bytes_of(key) == data.nbytes
    assert unhashed.put_all([data.data]) == [key]
    assert np.array_equal(np.frombuffer(unhashed.open(key), data.dtype), data)
    for place in (0, len(data) // 2, len(data) - 1):
        data[place] += 1
        (other,) = unhashed.put_all([data.data])
        assert other != key
        assert np.array_equal(np.frombuffer(unhashed.open(other), data.dtype), data)
        key = other


def test_what_is_watched_is_looked_at_again_only_after_a_write(tmp_path, monkeypatch):
    watched = BlobFolder(tmp_path / "blobs", hashed=1 << 16, watched=True)
    data = np.arange(1_000_000)
    if not Watch.over([(data.ctypes.data, data.nbytes)])[0].is_unwritten():
        pytest.skip("this system does not tell of writes to memory")
    (key,) = watched.put_all([data.data])
    with monkeypatch.context() as patch:
        patch.setattr(UnhashedBuffers, "_holds", lambda *_: pytest.fail("compared"))
        assert watched.put_all([data.data]) == [key]
    for number in (-1, -2, -3):
        data[7] = number
        keys = [key, *watched.put_all([data.data])]
        assert keys[0] != keys[1]
        key = keys[1]
    assert watched.put_all([data.data]) == [key], "compared, as it was always another, and watched from here on"
    with monkeypatch.context() as patch:
        patch.setattr(UnhashedBuffers, "_holds", lambda *_: pytest.fail("compared"))
        assert watched.put_all([data.data]) == [key]
        watched.discard([key])
        assert watched.put_all([data.data]) == [key]
    assert np.array_equal(np.frombuffer(watched.open(key), data.dtype), data)


def test_what_was_stored_of_a_buffer_that_has_changed_takes_no_room(tmp_path):
    watched, engines = BlobFolder(tmp_path / "a", hashed=1 << 16, watched=True), BlobFolder(tmp_path / "b", hashed=1 << 16)
    data = np.zeros(100_000)
    for number in range(3):
        data[5] = number
        (key,) = watched.put_all([data.data])
        engines.put_all([data.data])
    assert [path.name for path in watched.path.iterdir()] == [key]
    assert len(list(engines.path.iterdir())) == 3, "what an engine has packed for its rescue may name them"


@pytest.fixture
def in_memory(tmp_path):
    """A watched folder in shared memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield BlobFolder(Path(folder) / "blobs", hashed=1 << 16, watched=True)


def test_what_has_changed_is_written_over_what_was_stored_before(in_memory):
    data = np.zeros(100_000)
    files = set()
    for number in range(3):
        data[5] = number
        (key,) = in_memory.put_all([data.data])
        files.add((in_memory.path / key).stat().st_ino)
        assert names(in_memory) == {key}
        assert (in_memory.path / key).read_bytes() == data.tobytes()
    assert len(files) == 1


ELSEWHERE = """\
import sys
from pathlib import Path
from jupyter_dtrain.transport.blob_store import BlobFolder
buffer = BlobFolder(Path(sys.argv[1])).open(sys.argv[2])
print(flush=True)
sys.stdin.read()
print(bytes(buffer).hex())
"""


def test_nobody_who_has_what_was_stored_before_sees_it_change(in_memory):
    data = np.zeros(10_000)
    (first,) = in_memory.put_all([data.data])
    other = subprocess.Popen(
        [sys.executable, "-c", ELSEWHERE, in_memory.path, first], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    other.stdout.readline()  # it has it mapped
    data += 1
    (second,) = in_memory.put_all([data.data])
    assert bytes.fromhex(other.communicate()[0]) == bytes(data.nbytes)
    here = in_memory.open(second)
    data += 1
    (third,) = in_memory.put_all([data.data])
    assert np.array_equal(np.frombuffer(here, data.dtype), np.ones(10_000))
    linked = in_memory.path.parent / "linked"
    os.link(in_memory.path / third, linked)
    data += 1
    (fourth,) = in_memory.put_all([data.data])
    assert np.array_equal(np.fromfile(linked, data.dtype), np.full(10_000, 2.0))
    assert names(in_memory) == {fourth}


def test_where_nothing_is_known_of_others_what_has_changed_is_written_anew(in_memory, monkeypatch):
    monkeypatch.setattr(fcntl, "F_SETLEASE", -1)  # which no system knows
    data = np.zeros(10_000)
    (first,) = in_memory.put_all([data.data])
    file = (in_memory.path / first).stat().st_ino
    data += 1
    (second,) = in_memory.put_all([data.data])
    assert (in_memory.path / second).stat().st_ino != file
    assert names(in_memory) == {second}


def test_what_has_changed_takes_no_room_on_the_disk_either(tmp_path):
    blobs = BlobFolder(tmp_path / "blobs", hashed=1 << 16, watched=True)
    (tmp_path / "disk").mkdir()
    (blobs.path / OVERFLOW).symlink_to(tmp_path / "disk")
    data = np.zeros(10_000)
    (first,) = blobs.put_all([data.data])
    (blobs.path / first).rename(tmp_path / "disk" / first)
    (blobs.path / first).symlink_to(tmp_path / "disk" / first)
    data += 1
    (second,) = blobs.put_all([data.data])
    assert names(blobs) == {second, OVERFLOW}
    assert not [*(tmp_path / "disk").iterdir()]


def test_two_folders_that_watch_one_array_each_know_what_they_hold(tmp_path):
    first, second = (BlobFolder(tmp_path / name, hashed=1 << 16, watched=True) for name in "ab")
    data = np.arange(1_000_000)
    (old,) = first.put_all([data.data])
    data[0] = 5
    second.put_all([data.data])
    (new,) = first.put_all([data.data])
    assert new != old
    assert np.array_equal(np.frombuffer(first.open(new), data.dtype), data)


def test_what_is_compared_stays_mapped_until_the_last_comparison_is_over(unhashed, monkeypatch):
    monkeypatch.setattr("jupyter_dtrain.transport.unhashed.CHUNK", 1 << 12)  # many comparisons, of which an early one differs
    data = np.zeros(1_000_000)
    for number in range(1, 20):
        data[100_000] = number
        (key,) = unhashed.put_all([data.data])
        assert np.array_equal(np.frombuffer(unhashed.open(key)), data)
        unhashed.discard([key] if number % 5 == 0 else [])


def test_a_large_buffer_that_was_removed_is_stored_again(unhashed):
    data = np.ones(100_000)
    (key,) = unhashed.put_all([data.data])
    unhashed.discard([key])
    (other,) = unhashed.put_all([data.data])
    assert other != key
    assert bytes(unhashed.open(other)) == data.tobytes()


def test_progress_is_told_while_buffers_are_written(blobs, monkeypatch):
    monkeypatch.setattr(atomic_files, "BLOCK", 10)
    monkeypatch.setattr(module, "INTERVAL", 0.01)
    seen: list[tuple[int, int]] = []
    blobs.put_all([view(b"a" * 30)])
    half, write = threading.Event(), atomic_files.write_whole

    def slowly(path: Path, data: memoryview, **options: object) -> None:
        def on_written(number: int) -> None:
            options["on_written"](number)  # type: ignore[operator]
            assert half.wait(10), "somebody was told"

        write(path, data, on_written=on_written)

    def note(done: int, total: int) -> None:
        assert threading.current_thread() is threading.main_thread()
        seen.append((done, total))
        if 0 < done < total:
            half.set()

    monkeypatch.setattr(module, "write_whole", slowly)
    keys = blobs.put_all([view(b"a" * 30), view(b"b" * 30), view(b"c" * 5)], note)
    assert [bytes(blobs.open(key)) for key in keys] == [b"a" * 30, b"b" * 30, b"c" * 5]
    assert {total for _, total in seen} == {35}, "what was there is not counted"
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (35, 35)


def test_an_error_while_progress_is_told_is_the_callers(blobs, monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "broken disk")

    monkeypatch.setattr(module, "write_whole", broken)
    with pytest.raises(OSError, match="broken disk"):
        blobs.put_all([view(b"a" * 100), view(b"b" * 100)], lambda done, total: None)


def test_sending_is_told_once_it_takes_more_than_a_moment(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    shown: list[str] = []
    tell = Sending(shown.append)
    for seconds, done in ((0.5, 1), (1.0, 2), (1.1, 3), (2.0, 4)):
        now[0] = 100.0 + seconds
        tell(done << 30, 8 << 30)
    now[0] = 104.0
    tell(8 << 30, 8 << 30)
    assert shown == [
        "Sending 8.0 GiB to the engines: 25%, 2.0 GiB/s",
        "Sending 8.0 GiB to the engines: 50%, 2.0 GiB/s",
        "8.0 GiB were sent to the engines in 4.0 s (2.0 GiB/s).",
    ]
    quick = Sending(shown.append)
    quick(5, 5)
    assert len(shown) == 3
