"""Folders of runs that somebody else has filled: looking at them, and deleting from them, touches nothing else of the user's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jupyter_dtrain.system.confined import MAX_DEPTH
from tests.security.folders import PRIVATE, everything

STEP = "step-000010"
IDS = ["..", ".", "", "../home", "/", "a/b", "a\\b", "a\0b", "a\n", "-rf", "~", "a.b", "É", "x" * 200, 'x"); import os #', "x --trust", "١"]


@pytest.mark.parametrize("run_id", IDS)
def test_an_id_that_is_none_of_ours_names_no_folder(victim, run_id):
    victim.sql(f"UPDATE runs SET run_id = {_literal(run_id)}")
    before = everything(victim.project)
    listed, *others = victim.look(run_id)
    assert (listed.ok, listed.runs) == (True, [])
    assert listed.message.startswith("Run 1 of the record cannot be shown: its run_id is ")
    assert not any(reply.ok for reply in others)
    assert everything(victim.project) == before
    before = victim.outside() | everything(victim.run)
    for order in ("delete_run", "rename_run", "tag_run", "delete_checkpoint", "export_checkpoint", "pin_checkpoint"):
        reply = victim.ask(order, run_id, step=10, pinned=True, text="x")
        assert not reply.ok
        assert "There is no run" in reply.message
    assert victim.outside() | everything(victim.run) == before


def _literal(text: str) -> str:
    return f"CAST(X'{text.encode().hex()}' AS TEXT)"


def _link(path: Path, target: Path) -> None:
    """Put a link to `target` in the place of `path`."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


PLACES = [
    *("", "checkpoints", f"checkpoints/{STEP}", "blobs", "exports", "results"),
    *("cell.py", "run.json", "host.json", "task", "task.pickle", "files", "results/manifest.json"),
    *(f"checkpoints/{STEP}/manifest.json", f"checkpoints/{STEP}/0", f"checkpoints/{STEP}/pinned"),
    *("blobs/KEY", "blobs/.overflow", "blobs/.part-x"),
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("target", ["private", "private/id_ed25519", "private/step-000010", "nothing"])
def test_a_link_in_a_run_is_not_followed(victim, place, target):
    key = min(path.name for path in (victim.run / "blobs").iterdir())
    path = victim.run / place.replace("KEY", key)
    path.parent.mkdir(exist_ok=True)
    _link(path, victim.home / target)
    before = victim.outside()
    replies = victim.look()
    assert PRIVATE.decode().strip() not in repr(replies)
    assert "thesis.tex" not in repr(replies)
    for order in ("pin_checkpoint", "export_checkpoint", "delete_checkpoint", "delete_run"):
        for pinned in (True, False):
            victim.ask(order, step=10, pinned=pinned)
    assert victim.outside() == before
    assert not path.is_symlink() or victim.ask("list_runs").runs == []
    assert not os.path.lexists(victim.run), "all of the run is gone, the link with it"


def test_a_link_for_an_overflow_is_not_followed_either(victim):
    blobs = victim.run / "blobs"
    (blobs / ".overflow").symlink_to(victim.private)
    (blobs / victim.key.name).symlink_to(victim.key)
    before = victim.outside()
    assert victim.ask("delete_checkpoint", step=10).ok
    assert victim.outside() == before
    assert not os.path.lexists(blobs / victim.key.name)


def test_a_hard_link_costs_its_own_name_alone(victim):
    for path in (victim.run / "blobs" / "aa-1", victim.run / "checkpoints" / STEP / "pinned", victim.run / "files"):
        os.link(victim.key, path)
    mode, changed = victim.key.stat().st_mode, victim.key.stat().st_mtime_ns
    victim.look()
    for order in ("pin_checkpoint", "delete_checkpoint", "delete_run"):
        assert victim.ask(order, step=10, pinned=True).ok
    assert (victim.key.read_bytes(), victim.key.stat().st_mode, victim.key.stat().st_mtime_ns) == (PRIVATE, mode, changed)


def test_what_is_no_file_does_not_hold_anything_up(victim):
    for name in ("cell.py", "run.json", "host.json", "task", f"checkpoints/{STEP}/manifest.json", "results"):
        path = victim.run / name
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    os.mkfifo(victim.runs / "2026-01-01-000000-fifo")
    os.mkfifo(victim.run / "checkpoints" / "step-000030")
    began = time.monotonic()
    listed, curves, cell, _, checkpoints = victim.look()
    assert [run.run_id for run in listed.runs] == [victim.run_id]
    assert curves.ok
    assert "cannot be read" in cell.message
    assert [found.step for found in checkpoints.checkpoints] == [20]
    assert victim.ask("delete_checkpoint", step=10).ok
    assert not victim.ask("delete_checkpoint", step=30).ok
    assert victim.ask("delete_run").ok
    assert time.monotonic() - began < 60, "seconds: who waits for it waits for ever"
    assert not victim.run.exists()


def test_folders_that_lie_too_deep_are_left_as_they_are(victim):
    path = victim.run
    for _ in range(MAX_DEPTH + 10):
        path = path / "d"
    path.mkdir(parents=True)
    before = everything(victim.run)
    reply = victim.ask("delete_run")
    assert "deeper than any of ours" in reply.message
    assert everything(victim.run) == before
    assert [run.run_id for run in victim.ask("list_runs").runs] == [victim.run_id]


MOUNT = """
import subprocess, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from jupyter_dtrain.protocol import Command
from jupyter_dtrain.runs.archive import RunArchive
from jupyter_dtrain.errors import StoreError
runs, run_id, private, place = map(Path, sys.argv[1:])
target = runs / run_id / place
target.mkdir(exist_ok=True)
subprocess.run(["mount", "--bind", str(private), str(target)], check=True)
try:
    RunArchive(runs).answer(Command(id="1", name="delete_run", run_id=str(run_id)))
except StoreError as error:
    print(error)
"""


@pytest.mark.parametrize("place", ["blobs", "checkpoints/step-000010", "new"])
def test_another_folder_that_is_mounted_in_a_run_is_not_emptied(victim, place):
    code = MOUNT.format(root=str(Path(__file__).parents[2]))
    command = ["unshare", "-m", sys.executable, "-c", code, str(victim.runs), victim.run_id, str(victim.private), place]
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounts are root's")
    before, run = victim.outside(), everything(victim.run)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "Something else is mounted there" in done.stdout
    assert victim.outside() == before
    assert run.items() <= everything(victim.run).items() or place == "new"
    assert victim.ask("delete_run").ok, "where it is not mounted any more"


SWAP = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <fcntl.h>
#include <unistd.h>
int main(int argc, char **argv) {
    for (;;) renameat2(AT_FDCWD, argv[1], AT_FDCWD, argv[2], RENAME_EXCHANGE);
}
"""


@pytest.fixture(scope="module")
def swap(tmp_path_factory):
    """A program that exchanges two names without end."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler and Linux")
    folder = tmp_path_factory.mktemp("swap")
    (folder / "swap.c").write_text(SWAP)
    subprocess.run([compiler, "-O2", "-o", str(folder / "swap"), str(folder / "swap.c")], check=True)
    return folder / "swap"


@pytest.mark.parametrize("place", ["", "checkpoints", f"checkpoints/{STEP}", "blobs"])
@pytest.mark.parametrize("seconds", [1, pytest.param(60, marks=[pytest.mark.long, pytest.mark.timeout(120)])])
def test_a_folder_that_is_exchanged_for_a_link_all_the_time(victim, swap, tmp_path, place, seconds):
    (tmp_path / "link").symlink_to(victim.private)
    before, outcomes = victim.outside(), set()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not victim.run.is_dir():
            shutil.rmtree(victim.project / "dtrain-runs", ignore_errors=True)
            victim.__init__(tmp_path / str(time.monotonic_ns()))
            before = victim.outside()
            (victim.home.parent / "link").symlink_to(victim.private)
        process = subprocess.Popen([str(swap), str(victim.run / place), str(victim.home.parent / "link")])
        try:
            for order in ("list_checkpoints", "pin_checkpoint", "delete_checkpoint", "delete_checkpoint", "delete_run"):
                reply = victim.ask(order, step=10 if order != "delete_checkpoint" else 20, pinned=True)
                outcomes.add((order, reply.ok))
        finally:
            process.kill()
            process.wait()
        victim.run = victim.runs / "gone"  # begin anew
        assert victim.outside() == before
    assert {order for order, _ in outcomes} >= {"delete_run", "delete_checkpoint"}
