"""Checkpoints on disk: whole or not there, checked before they are used, and none of another version."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
from pathlib import Path

import pytest

from jupyter_dtrain.checkpoint import folder as module
from jupyter_dtrain.checkpoint import manifest as manifests
from jupyter_dtrain.checkpoint.folder import CheckpointFolder
from jupyter_dtrain.checkpoint.manifest import checksum_of
from jupyter_dtrain.checkpoint.snapshot_folder import SnapshotFolder
from jupyter_dtrain.engine.snapshot.snapshot_files import snapshot_blobs
from jupyter_dtrain.errors import CheckpointError
from jupyter_dtrain.system.atomic_files import alone_in, write_whole
from jupyter_dtrain.transport.blob_store import BlobFolder
from tests.fakes import Trap

TASK = pickle.dumps("task")


class Run:
    """A run's folder, and engines' shared memory with what is to be written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "run"
        self.folder.mkdir()
        self.memory = BlobFolder(folder / "memory")
        self.checkpoints = CheckpointFolder(self.folder)

    def write(self, step: int, *, weights: bytes = b"w" * 1000, ranks: int = 2):
        keys = [self.memory.put(memoryview(weights)), self.memory.put(memoryview(b"moments of %d" % step))]
        parts = [b"rank %d at step %d" % (rank, step) for rank in range(ranks)]
        return self.checkpoints.write(parts, self.memory, keys, step=step, place="line 7")

    def everything(self) -> set[Path]:
        return {path for path in self.folder.rglob("*") if path.is_file()}


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


def test_what_was_written_is_read(run, tmp_path):
    written = run.write(120)
    assert (written.step, written.world_size, written.place) == (120, 2, "line 7")
    assert written.num_bytes > 1000
    found, complaints = run.checkpoints.newest_intact()
    assert (found.checkpoint, complaints) == (written, [])
    target = tmp_path / "engines"
    target.mkdir()
    whole = run.checkpoints.read(found, SnapshotFolder(target), number=1)
    assert (whole.number, whole.step, whole.world_size) == (1, 120, 2)
    assert [(target / f"1-{rank}").read_bytes() for rank in range(2)] == [b"rank 0 at step 120", b"rank 1 at step 120"]
    assert sorted(bytes(BlobFolder(snapshot_blobs(target, 1)).open(key)) for key in whole.keys) == [b"moments of 120", b"w" * 1000]


def test_equal_buffers_lie_there_once_and_go_with_the_last_that_needs_them(run):
    for step in (10, 20, 30):
        run.write(step)
    assert [found.step for found in run.checkpoints.newest_first()] == [30, 20, 10]
    assert len(list((run.folder / "blobs").iterdir())) == 4
    run.checkpoints.prune(1)
    assert [found.step for found in run.checkpoints.newest_first()] == [30]
    assert len(list((run.folder / "blobs").iterdir())) == 2
    assert run.checkpoints.newest_intact()[0].checkpoint.step == 30


def test_what_a_killed_kernel_left_half_written_goes_with_the_next(run):
    run.write(10)
    (run.folder / "checkpoints" / ".part-1").mkdir()
    for half in (run.folder / "checkpoints" / ".part-1" / "0", run.folder / "blobs" / ".part-2", run.folder / ".part-3"):
        half.write_bytes(b"half")
    assert [found.step for found in run.checkpoints.newest_first()] == [10]
    run.write(20)
    run.checkpoints.prune(2)
    assert [path for path in run.everything() if ".part-" in str(path.relative_to(run.folder))] == []
    assert [found.step for found in run.checkpoints.newest_first()] == [20, 10]


def spoil_part(run):
    path = run.folder / "checkpoints" / "step-000020" / "1"
    path.write_bytes(path.read_bytes()[:-3])


def spoil_blob(run):
    (path,) = (path for path in (run.folder / "blobs").iterdir() if path.read_bytes() == b"moments of 20")
    data = bytearray(path.read_bytes())
    data[2] ^= 1
    path.write_bytes(data)


def lose_blob(run):
    (path,) = (path for path in (run.folder / "blobs").iterdir() if path.read_bytes() == b"moments of 20")
    path.unlink()


def spoil_manifest(run):
    (run.folder / "checkpoints" / "step-000020" / "manifest.json").write_text("{")


def lose_manifest(run):
    (run.folder / "checkpoints" / "step-000020" / "manifest.json").unlink()


@pytest.mark.parametrize("spoil", [spoil_part, spoil_blob, lose_blob, spoil_manifest, lose_manifest], ids=lambda spoil: spoil.__name__)
def test_a_damaged_one_is_named_and_the_one_before_is_used(run, spoil):
    run.write(10)
    run.write(20)
    spoil(run)
    found, complaints = run.checkpoints.newest_intact()
    assert found.checkpoint.step == 10
    assert len(complaints) == 1
    assert "step-000020 is damaged" in complaints[0]


def test_one_of_a_newer_version_is_left_alone(run):
    run.write(10)
    path = run.folder / "checkpoints" / "step-000010" / "manifest.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "format": manifests.FORMAT + 1}))
    found, (complaint,) = run.checkpoints.newest_intact()
    assert found is None
    assert "newer version" in complaint
    assert "update jupyter_dtrain" in complaint


def test_without_room_nothing_is_written_and_nothing_lost(run, monkeypatch):
    run.write(10)
    before = run.everything()
    usage = shutil.disk_usage(run.folder)._replace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    with pytest.raises(CheckpointError, match="no room for a checkpoint"):
        run.write(20, weights=b"other" * 1000)
    assert run.everything() == before
    assert run.checkpoints.newest_intact()[0].checkpoint.step == 10


def test_a_disk_that_is_full_half_way_leaves_no_half_checkpoint(run, monkeypatch):
    run.write(10)

    def fail(path, data, **options):
        if path.name == "manifest.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        write_whole(path, data, **options)

    monkeypatch.setattr(manifests, "write_whole", fail)
    with pytest.raises(CheckpointError, match="No space left"):
        run.write(20)
    assert [path.name for path in (run.folder / "checkpoints").iterdir()] == ["step-000010"]
    assert run.checkpoints.newest_intact()[0].checkpoint.step == 10


def test_what_the_run_began_with_is_checked_too(run, tmp_path):
    keys = [run.memory.put(memoryview(b"data" * 100))]
    run.checkpoints.write_task(TASK, run.memory, keys)
    run.write(10)
    run.checkpoints.prune(1)
    out = BlobFolder(tmp_path / "out")
    assert run.checkpoints.read_task(out) == "task"
    assert bytes(out.open(keys[0])) == b"data" * 100
    (run.folder / "task.pickle").write_bytes(b"other")
    with pytest.raises(CheckpointError, match="has been changed on disk"):
        run.checkpoints.read_task(out)
    (run.folder / "task.pickle").unlink()
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        run.checkpoints.read_task(out)


def test_what_was_not_hashed_for_the_run_is_checked_as_well(run, tmp_path):
    memory = BlobFolder(run.memory.path, hashed=100)
    keys = memory.put_all([memoryview(b"data" * 100)])
    run.checkpoints.write_task(TASK, memory, keys)
    out = BlobFolder(tmp_path / "out")
    assert run.checkpoints.read_task(out) == "task"
    assert bytes(out.open(keys[0])) == b"data" * 100
    (run.folder / "blobs" / keys[0]).write_bytes(b"dato" * 100)
    with pytest.raises(CheckpointError, match="a checksum does not match"):
        run.checkpoints.read_task(BlobFolder(tmp_path / "other"))


def test_of_a_run_that_is_through_nothing_stays(run):
    run.checkpoints.write_task(TASK, run.memory, [])
    run.write(10)
    run.checkpoints.remove()
    assert list(run.folder.iterdir()) == []
    assert run.checkpoints.newest_first() == []


def test_what_another_user_has_written_is_refused_unless_it_is_trusted(run, tmp_path, monkeypatch):
    run.checkpoints.write_task(pickle.dumps("began"), run.memory, [])
    run.write(10)
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "somebody else"))
    with pytest.raises(CheckpointError, match=r"was not written by you here.*resume run --trust"):
        run.checkpoints.check_origin()
    for action in (lambda: run.checkpoints.intact(10), lambda: run.checkpoints.read_task(BlobFolder(tmp_path / "blobs"))):
        with pytest.raises(CheckpointError, match="was not written by you here"):
            action()
    assert run.checkpoints.newest_intact()[0] is None
    assert run.checkpoints.intact(10, trusted=True).checkpoint.step == 10
    assert run.checkpoints.read_task(BlobFolder(tmp_path / "blobs"), trusted=True) == "began"


def test_a_part_that_was_changed_with_its_checksum_is_refused(run):
    written = run.write(10)
    path = written.folder / "manifest.json"
    data = pickle.dumps(Trap())
    (written.folder / "0").write_bytes(data)
    with pytest.raises(CheckpointError, match="is damaged"):
        run.checkpoints.intact(10)
    manifest = json.loads(path.read_text())
    manifest["parts"][0] = checksum_of(data)
    path.write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="was not written by you here, or has been changed since"):
        run.checkpoints.intact(10)
    assert not Trap.sprung


def test_a_buffer_that_was_changed_with_its_checksum_is_not_vouched_for_by_the_next_checkpoint(run):
    written = run.write(10)
    key = run.memory.put(memoryview(b"w" * 1000))
    (run.folder / "blobs" / key).write_bytes(b"v" * 1000)
    manifest = json.loads((written.folder / "manifest.json").read_text())
    manifest["blobs"][key] = checksum_of(b"v" * 1000)
    (written.folder / "manifest.json").write_text(json.dumps(manifest))
    run.write(20)  # has the same weights, which lie there already
    with pytest.raises(CheckpointError, match="a checksum does not match"):
        run.checkpoints.intact(20)


def test_buffers_that_lie_there_already_are_not_read_again(run, monkeypatch):
    run.write(10)
    seen: list[bytes] = []

    def noted(data: bytes | memoryview) -> str:
        seen.append(bytes(data))
        return checksum_of(data)

    monkeypatch.setattr(module, "checksum_of", noted)
    run.write(20)
    assert b"w" * 1000 not in seen
    assert b"moments of 20" in seen
    assert run.checkpoints.newest_intact()[0].checkpoint.step == 20


def test_the_secret_is_the_users_own(run, tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    run.write(10)
    secret = tmp_path / "data" / "jupyter_dtrain" / "secret"
    assert (secret.stat().st_mode & 0o777, len(secret.read_bytes())) == (0o600, 32)
    run.write(20)
    assert [run.checkpoints.intact(step).checkpoint.step for step in (10, 20)] == [10, 20]
    assert list(secret.parent.iterdir()) == [secret]


def test_a_secret_that_was_cut_off_is_made_anew(run, tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    secret = tmp_path / "data" / "jupyter_dtrain" / "secret"
    secret.parent.mkdir(parents=True)
    for left in (b"", b"short", b"x" * 33):
        secret.write_bytes(left)
        secret.chmod(0o600)
        run.write(10)
        assert (len(secret.read_bytes()), secret.stat().st_mode & 0o777) == (32, 0o600)
        assert not secret.read_bytes().startswith(b"xxx")
        assert run.checkpoints.intact(10).checkpoint.step == 10
    assert list(secret.parent.iterdir()) == [secret]


def test_a_secret_that_is_not_the_users_alone_signs_nothing(run, tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    secret = tmp_path / "data" / "jupyter_dtrain" / "secret"
    secret.parent.mkdir(parents=True)
    other = tmp_path / "other"
    other.write_bytes(b"o" * 32)
    other.chmod(0o600)
    kinds = {
        "Others can read": lambda: (secret.write_bytes(b"k" * 32), secret.chmod(0o640)),
        "is not your file": lambda: os.mkfifo(secret),
        "cannot be created or read": lambda: secret.symlink_to(other),
    }
    for says, make in kinds.items():
        make()
        with pytest.raises(CheckpointError, match=says):
            run.write(10)
        secret.unlink()
    run.write(10)
    assert run.checkpoints.intact(10).checkpoint.step == 10


def test_pinned_ones_stay_and_deleted_ones_go_with_what_they_alone_need(run):
    for step in (10, 20, 30):
        run.write(step)
    run.checkpoints.pin(10, True)
    run.checkpoints.prune(1)
    assert [(found.step, found.pinned) for found in run.checkpoints.newest_first()] == [(30, False), (10, True)]
    run.write(10)
    assert run.checkpoints.at(10).pinned, "written anew by a run that was rolled back"
    run.checkpoints.delete(30)
    assert len(list((run.folder / "blobs").iterdir())) == 2
    run.checkpoints.pin(10, False)
    run.checkpoints.prune(0)
    assert run.everything() == set()
    with pytest.raises(CheckpointError, match="no checkpoint of step 10"):
        run.checkpoints.delete(10)


def test_what_is_deleted_while_another_is_being_written_takes_nothing_from_it(run):
    run.write(10)
    with alone_in(run.folder):
        run.checkpoints.delete(10)
        assert len(list((run.folder / "blobs").iterdir())) == 2
    run.write(20)
    run.checkpoints.prune(1)
    assert run.checkpoints.intact(20).checkpoint.step == 20
    assert len(list((run.folder / "blobs").iterdir())) == 2
