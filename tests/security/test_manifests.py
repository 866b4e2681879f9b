"""Checkpoints and results that somebody else has written, moved or changed, at whatever moment: none is unpickled, and it says why."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_dtrain.checkpoint import disk_blobs, manifest
from jupyter_dtrain.checkpoint import reader as checkpoint_files
from jupyter_dtrain.checkpoint.folder import CheckpointFolder
from jupyter_dtrain.checkpoint.manifest import FORMAT, checksum_of, other_versions
from jupyter_dtrain.checkpoint.snapshot_folder import SnapshotFolder
from jupyter_dtrain.detached import detached_results as endings
from jupyter_dtrain.detached.detached_results import DetachedResult, read_ending, results_of, write_ending
from jupyter_dtrain.errors import CheckpointError, ClusterError
from jupyter_dtrain.protocol import ClusterUpdate, Snapshot
from jupyter_dtrain.runs.store import RunStore
from jupyter_dtrain.transport.blob_store import BlobFolder
from tests.fakes import Trap
from tests.security.folders import Victim

STEP = "step-000020"


@pytest.fixture(autouse=True)
def nothing_runs():
    Trap.sprung = False
    yield
    assert not Trap.sprung


def edited(path: Path, change: Callable[[dict], object]) -> None:
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


def signed(path: Path, change: Callable[[dict], object]) -> None:
    """Change a manifest as one of this user's own."""
    found = json.loads(path.read_text())
    del found["signature"]
    change(found)
    found["signature"] = manifest._signature(found)
    path.write_text(json.dumps(found))


NONE_OF_OURS = {
    "format alone": '{"format": 2}',
    "an old one": '{"format": 1, "step": 20}',
    "no number": '{"format": "x"}',
    "true": '{"format": true}',
    "a list": "[]",
    "nothing": "",
    "deep": "[" * 100_000,
    "another kind": '{"format": 2, "kind": "task", "run": "r", "versions": {}, "blobs": {}, "data": ""}',
}


@pytest.mark.parametrize("text", NONE_OF_OURS.values(), ids=NONE_OF_OURS)
def test_a_manifest_that_is_none_of_ours_costs_its_checkpoint_alone(victim, text):
    (victim.run / "checkpoints" / STEP / "manifest.json").write_text(text)
    assert [found.step for found in victim.ask("list_checkpoints").checkpoints] == [10]
    found, (complaint,) = CheckpointFolder(victim.run).newest_intact()
    assert found is not None
    assert found.checkpoint.step == 10
    assert STEP in complaint
    assert victim.ask("delete_checkpoint", step=20).ok


CHANGES: dict[str, list[object]] = {
    "step": [21, -1, "20", 1.5, True, None, 10**30],
    "parts": [[], {}, "x", [3], None],
    "blobs": [[], {"../../private/x": "0"}, {"/etc/passwd": "0"}, {"a": 3}, {".": ""}],
    "time": ["now", None, float("inf"), float("nan")],
    "place": [3, None],
    "num_bytes": ["1", -1],
    "versions": [[], {"python": 3}, None],
    "run": ["..", 3, "a/b"],
    "measured": [{}, [], {"name": "x", "mode": "best", "value": 1}, {"name": "x", "mode": "min", "value": "1"}],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in CHANGES.items() for value in values])
def test_a_manifest_with_something_else_in_it_is_none_whoever_signs_it(victim, name, value):
    signed(victim.run / "checkpoints" / STEP / "manifest.json", lambda found: found.update({name: value}))
    assert [found.step for found in victim.ask("list_checkpoints").checkpoints] == [10]
    with pytest.raises(CheckpointError, match="damaged"):
        CheckpointFolder(victim.run).intact(20, trusted=True)


def test_names_of_folders_are_steps_as_we_write_them(victim):
    for name in ("step-20", "step-0000020", f"step-{'9' * 5000}"[:250], "step-٠٠٠٠٢٠", "step-000030x", "step--00001"):
        (victim.run / "checkpoints" / name).mkdir()
    assert [found.step for found in victim.ask("list_checkpoints").checkpoints] == [20, 10]


def test_parts_of_one_run_are_none_of_another(victim):
    with RunStoreOf(victim) as store:
        other = store.create_run("other", "train()", 2, {}, {})
        store.finish_run(other, "failed")
    theirs = victim.write_checkpoints(victim.runs / other)
    moved = victim.runs / other / "checkpoints" / STEP
    shutil.rmtree(moved)
    shutil.copytree(victim.run / "checkpoints" / STEP, moved)
    with pytest.raises(CheckpointError, match="belongs to another run"):
        theirs.intact(20)
    for name in ("task", "task.pickle"):
        shutil.copy(victim.run / name, victim.runs / other / name)
    with pytest.raises(CheckpointError, match="belongs to another run"):
        theirs.read_task(BlobFolder(victim.project / "memory"))
    edited(moved / "manifest.json", lambda found: found.update(run=other))
    with pytest.raises(CheckpointError, match="was not written by you here, or has been changed since"):
        theirs.intact(20)


def test_one_step_is_not_taken_for_another(victim):
    shutil.copytree(victim.run / "checkpoints" / STEP, victim.run / "checkpoints" / "step-000030")
    assert [found.step for found in victim.ask("list_checkpoints").checkpoints] == [20, 10]
    with pytest.raises(CheckpointError, match="its manifest is that of step 20"):
        CheckpointFolder(victim.run).intact(30)


class RunStoreOf(RunStore):
    def __init__(self, victim: Victim) -> None:
        super().__init__(victim.runs)

    def __enter__(self) -> RunStore:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def after_a_look(monkeypatch, modules, path: Path, data: bytes) -> None:
    """Let `path` hold something else as soon as what it holds has been hashed."""

    def look(content: bytes | memoryview) -> str:
        found = checksum_of(content)
        if path.exists() and bytes(content) == path.read_bytes():
            path.unlink()
            path.write_bytes(data)
        return found

    for module in modules:
        monkeypatch.setattr(module, "checksum_of", look)


def test_what_is_unpickled_is_what_was_looked_at(victim, monkeypatch, tmp_path):
    folder = CheckpointFolder(victim.run)
    hostile = pickle.dumps(Trap())
    after_a_look(monkeypatch, [manifest], victim.run / "task.pickle", hostile)
    task: object = folder.read_task(BlobFolder(tmp_path / "a"))
    assert task == f"task of {victim.run_id}"
    assert (victim.run / "task.pickle").read_bytes() == hostile
    part = victim.run / "checkpoints" / STEP / "0"
    after_a_look(monkeypatch, [checkpoint_files], part, hostile)
    intact = folder.intact(20)
    assert part.read_bytes() == hostile
    (tmp_path / "state").mkdir()
    folder.read(intact, SnapshotFolder(tmp_path / "state"), number=1)
    assert pickle.loads((tmp_path / "state" / "1-0").read_bytes()) == f"{victim.run_id} at 20"


def test_numbers_that_change_after_a_look_are_noticed(victim, monkeypatch, tmp_path):
    folder = CheckpointFolder(victim.run)
    (path,) = (path for path in (victim.run / "blobs").iterdir() if path.read_bytes() == b"20" * 50)
    after_a_look(monkeypatch, [disk_blobs], path, b"21" * 50)
    intact = folder.intact(20)
    (tmp_path / "state").mkdir()
    with pytest.raises(CheckpointError, match="a checksum does not match"):
        folder.read(intact, SnapshotFolder(tmp_path / "state"), number=1)


def snapshot() -> Snapshot:
    return Snapshot(version=1, cluster=ClusterUpdate(phase="running"), run=None)


def test_results_are_unpickled_as_they_were_looked_at_and_belong_to_their_run(victim, monkeypatch, tmp_path):
    shown = tmp_path / "shown"
    shown.write_bytes(b"calls")
    shown.chmod(0o644)
    folder = results_of(victim.run)
    write_ending(folder, DetachedResult(snapshot(), error=ClusterError("lost")), shown=shown, run_id=victim.run_id)
    assert {path.stat().st_mode & 0o777 for path in folder.rglob("*")} == {0o600, 0o700}
    with pytest.raises(CheckpointError, match="belongs to another run"):
        read_ending(folder, "other", trusted=False)
    for name, data in (("shown", b"other"), ("ending", pickle.dumps(Trap()))):
        after_a_look(monkeypatch, [endings], folder / name, data)
        found = read_ending(folder, victim.run_id, trusted=False)
        assert (str(found.error), found.shown) == ("lost", b"calls")
        assert (folder / name).read_bytes() == data
        with pytest.raises(CheckpointError, match="is damaged"):
            read_ending(folder, victim.run_id, trusted=False)
        write_ending(folder, DetachedResult(snapshot(), error=ClusterError("lost")), shown=shown, run_id=victim.run_id)


def test_one_of_an_older_format_is_refused_in_a_sentence(victim):
    for path in (victim.run / "task", victim.run / "checkpoints" / STEP / "manifest.json"):
        signed(path, lambda found: found.update(format=FORMAT - 1))
    for read in (lambda: CheckpointFolder(victim.run).intact(20), lambda: CheckpointFolder(victim.run).check_origin()):
        with pytest.raises(CheckpointError, match=r"older version of jupyter_dtrain \(format 1, this one reads 2\): run the cell again"):
            read()


@pytest.mark.parametrize("trusted", [True, False])
def test_one_of_another_python_says_so(victim, trusted, tmp_path):
    for path in (victim.run / "task", victim.run / "checkpoints" / STEP / "manifest.json"):
        signed(path, lambda found: found["versions"].update(python="3.99.1"))
    folder = CheckpointFolder(victim.run)
    for read in (lambda: folder.intact(20, trusted=trusted), lambda: folder.read_task(BlobFolder(tmp_path / "m"), trusted=trusted)):
        with pytest.raises(
            CheckpointError, match=r"was written by Python 3\.99\.1, and this is Python 3.*start the kernel with Python 3\.99"
        ):
            read()


def test_other_versions_of_packages_are_named_and_with_them_what_cannot_be_read(victim, tmp_path):
    path = victim.run / "task"
    data = b"cjupyter_dtrain.engine.gone\nTask\n."
    (victim.run / "task.pickle").write_bytes(data)
    signed(path, lambda found: found.update(data=checksum_of(data), versions={**found["versions"], "torch": "2.1.0"}))
    folder = CheckpointFolder(victim.run)
    assert folder.other_versions().startswith("torch 2.1.0 (here 2.")
    with pytest.raises(
        CheckpointError,
        match=r"ModuleNotFoundError: No module named 'jupyter_dtrain\.engine\.gone'.* was written with torch 2\.1\.0 \(here",
    ):
        folder.read_task(BlobFolder(tmp_path / "m"))
    signed(path, lambda found: found["versions"].update(torch=manifest.versions()["torch"]))
    assert other_versions(json.loads(path.read_text())) == ""
    with pytest.raises(CheckpointError, match="Install or import what it needs, or run the cell again"):
        folder.read_task(BlobFolder(tmp_path / "m"))


def test_deleting_leaves_the_buffers_of_what_another_version_has_written(victim):
    signed(victim.run / "checkpoints" / STEP / "manifest.json", lambda found: found.update(format=FORMAT + 1))
    kept = json.loads((victim.run / "checkpoints" / STEP / "manifest.json").read_text())["blobs"]
    assert victim.ask("delete_checkpoint", step=10).ok
    assert kept.keys() <= {path.name for path in (victim.run / "blobs").iterdir()}
