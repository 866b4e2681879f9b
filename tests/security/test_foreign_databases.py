"""Records of runs that somebody else has made: reading one changes nothing, nothing in it runs, and what is wrong costs one line."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from jupyter_dtrain.errors import StoreError
from jupyter_dtrain.runs.curves import Curve
from jupyter_dtrain.runs.database import DATABASE
from jupyter_dtrain.runs.record import new_run_id
from jupyter_dtrain.runs.store import RunStore
from jupyter_dtrain.system.confined import is_run_id
from tests.security.folders import everything
from tests.unit.test_archive import VERSION_1

WRITER = """
import os, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from jupyter_dtrain.runs.store import RunStore
RunStore(Path(sys.argv[1])).create_run("killed", "train()", 2, {{}}, {{}})
os._exit(9)
"""


def _made_by(path, script):
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)


def _first_version(victim):
    _made_by(victim.runs / DATABASE, VERSION_1)


def _killed(victim):
    code = WRITER.format(root=str(Path.cwd()))
    assert subprocess.run([sys.executable, "-c", code, str(victim.runs)], check=False, timeout=60).returncode == 9
    assert (victim.runs / f"{DATABASE}-wal").stat().st_size


def _copied(victim):
    _killed(victim)
    (victim.runs / f"{DATABASE}-shm").unlink()


def _rollback_journal(victim):
    victim.sql("PRAGMA journal_mode = DELETE")


@pytest.mark.parametrize("make", [_first_version, _copied, _rollback_journal, lambda victim: None], ids=lambda make: make.__name__)
def test_reading_changes_nothing(victim, make):
    make(victim)
    before = everything(victim.project)
    for _ in range(2):
        listed = victim.look()[0]
        assert listed.runs
        assert listed.message == ""
    with closing(RunStore(victim.runs)) as store:
        assert store.find_run("digits") is not None
        if make is _copied:
            assert store.find_run("killed") is not None, "what is in the log alone"
    assert everything(victim.project) == before


def test_what_a_killed_kernel_had_not_copied_yet_is_read(victim):
    _killed(victim)
    before = victim.outside()
    assert [run.name for run in victim.ask("list_runs").runs] == ["killed", "digits"]
    assert victim.outside() == before


def test_an_older_version_goes_on_until_a_newer_one_writes(victim):
    _first_version(victim)
    victim.look("old")
    with closing(sqlite3.connect(victim.runs / DATABASE)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    assert victim.ask("tag_run", "old", text="kept").ok
    (old,) = victim.ask("list_runs").runs
    assert (old.tags, old.loss) == (["kept"], 0.25)


def test_what_others_write_is_seen(victim):
    with closing(RunStore(victim.runs)) as reader, closing(RunStore(victim.runs)) as writer:
        assert len(reader.list_runs()) == 1
        run_id = writer.create_run("more", "train()", 2, {}, {})
        assert len(reader.list_runs()) == 2
        writer.finish_run(run_id, "stopped")
        assert reader.get_run(run_id).phase == "stopped"
        writer.close()
        assert reader.get_run(run_id).phase == "stopped"
        writer.delete_run(run_id)
        assert len(reader.list_runs()) == 1


BROWSER = "CREATE TABLE cookies (host TEXT, value TEXT); INSERT INTO cookies VALUES ('bank', 'secret');"
OURS = (
    "CREATE TABLE runs (number, run_id, name, phase, world_size, started, ended, error, arguments, "
    "owner_host, owner_pid, owner_created, seen);"
)
REST = "CREATE TABLE curves (curve, number, name); CREATE TABLE points (curve, step, time, value);"
ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x"
AS_RUNS = (
    "AS number, 'r' || x AS run_id, 'n' AS name, 'finished' AS phase, 2 AS world_size, 1.0 AS started, NULL AS ended, NULL AS error, "
    "'{}' AS arguments, 'h' AS owner_host, 1 AS owner_pid, 1.0 AS owner_created, 1.0 AS seen, '[]' AS tags FROM c"
)
POINTS = f"CREATE VIEW points AS {ENDLESS} AS curve, x AS step, 1.0 AS time, 1.0 AS value FROM c;"
FOREIGN = {
    "another program's": (BROWSER, "is the database of another program"),
    "another program's with a version": (BROWSER + "PRAGMA user_version = 2;", "has not the tables of a record of runs"),
    "an endless view": (f"CREATE VIEW runs AS {ENDLESS} {AS_RUNS}; {REST} PRAGMA user_version = 2;", "has not the tables"),
    "an endless view of points": (
        f"{OURS} CREATE TABLE curves (curve, number, name); {POINTS} PRAGMA user_version = 2;",
        "has not the tables",
    ),
    "an endless view of overviews": (
        f"{OURS} {REST} CREATE VIEW overviews AS {ENDLESS} AS curve, x'00' AS points FROM c; PRAGMA user_version = 3;",
        "has not the tables",
    ),
    "a virtual table": (f"CREATE VIRTUAL TABLE runs USING fts5(run_id); {REST} PRAGMA user_version = 2;", "has not the tables"),
    "computed columns": (
        f"{OURS.replace('name,', 'name AS (hex(zeroblob(100000000))),')} {REST} PRAGMA user_version = 2;",
        "has not the tables",
    ),
    "a trigger": (
        f"{OURS} {REST} CREATE TRIGGER t AFTER DELETE ON runs BEGIN DELETE FROM points; END; PRAGMA user_version = 2;",
        "has triggers",
    ),
    "a newer version": (f"{OURS} {REST} PRAGMA user_version = 5;", "was written by a newer version"),
    "a negative version": (f"{OURS} {REST} PRAGMA user_version = -1;", "is the database of another program"),
}


@pytest.mark.parametrize(("script", "says"), FOREIGN.values(), ids=FOREIGN)
def test_a_database_that_is_none_of_ours_is_left_as_it_is(victim, script, says):
    _made_by(victim.runs / DATABASE, script)
    before = everything(victim.project)
    began = time.monotonic()
    for reply in victim.look():
        assert not reply.ok
        assert says in reply.message
    for order in ("delete_run", "rename_run", "tag_run"):
        assert says in victim.ask(order, text="x").message
    with closing(RunStore(victim.runs)) as store, pytest.raises(StoreError, match=says):
        store.create_run("digits", "train()", 2, {}, {})
    assert time.monotonic() - began < 60, "seconds: who waits for it waits for ever"
    assert everything(victim.project) == before


@pytest.mark.parametrize("end", ["", "-wal", "-shm", "-journal"])
@pytest.mark.parametrize("kind", ["link", "hard link", "fifo", "folder"])
def test_a_file_of_the_database_that_is_elsewhere_is_not_touched(victim, end, kind):
    path, other = victim.runs / f"{DATABASE}{end}", victim.private / "other.sqlite"
    if kind == "hard link" and not end:
        pytest.skip("it is what is in it that counts")
    shutil.copy(victim.runs / DATABASE, other)
    path.unlink(missing_ok=True)
    {"link": path.symlink_to, "hard link": path.hardlink_to, "fifo": lambda _: os.mkfifo(path), "folder": lambda _: path.mkdir()}[kind](
        other
    )
    before = victim.outside()
    for reply in (*victim.look(), victim.ask("delete_run"), victim.ask("tag_run", text="x")):
        assert not reply.ok
        assert "not written by jupyter_dtrain: move it away" in reply.message
    with closing(RunStore(victim.runs)) as store, pytest.raises(StoreError, match="not written by jupyter_dtrain"):
        store.create_run("digits", "train()", 2, {}, {})
    assert victim.outside() == before


ROWS = {
    "arguments": ["'not json'", "'[]'", "'" + "[" * 100_000 + "'", "X'00'", "3"],
    "owner_pid": ["'x'", "-1", "0", "1e300", "9223372036854775807"],
    "owner_created": ["'x'", "9e999"],
    "owner_host": ["X'ff'"],
    "run_id": ["X'00'", "'A'", "CAST(X'ff' AS TEXT)"],
    "name": ["X'00'", "hex(zeroblob(20000000))", "CAST(X'ff' AS TEXT)"],
    "phase": ["'exploded'", "X'00'"],
    "world_size": ["'many'", "0", "9223372036854775807"],
    "started": ["'yesterday'", "-1.0", "9e999"],
    "ended": ["'soon'", "X'00'"],
    "error": ["X'00'"],
    "tags": ["'{}'", "'3'", "'[3]'", "'['"],
    "seen": ["'x'"],
}


@pytest.mark.parametrize(("column", "value"), [(column, value) for column, values in ROWS.items() for value in values])
def test_a_row_that_is_none_of_ours_costs_itself_alone(victim, column, value):
    with closing(RunStore(victim.runs)) as store:
        bad = store.create_run("bad", "train()", 2, {}, {})
    victim.sql(f"UPDATE runs SET {column} = {value} WHERE run_id = '{bad}'")
    listed = victim.ask("list_runs")
    assert (listed.ok, [run.name for run in listed.runs]) == (True, ["digits"])
    assert listed.message.startswith("Run 2 of the record cannot be shown: ")
    assert len(listed.message) < 200
    assert victim.ask("tag_run", text="mine").ok
    assert victim.ask("delete_run").ok


def test_points_that_are_none_of_ours_are_left_out(victim):
    with closing(RunStore(victim.runs)) as store:
        store.add_points(victim.run_id, [("loss", Curve(step=[1, 2], time=[1.0, 2.0], value=[0.5, 0.25]))])
    victim.sql(
        "INSERT INTO points SELECT curve, 'x', 3.0, 1.0 FROM curves", "INSERT INTO points SELECT curve, 3, 'then', 'much' FROM curves"
    )
    (loss,) = victim.ask("get_curves").points
    assert (loss.step, loss.value) == ([1, 2], [0.5, 0.25])
    assert victim.ask("list_runs").ok
    assert victim.ask("list_checkpoints").ok


def test_a_name_moves_no_cursor(victim):
    victim.sql("UPDATE runs SET name = 'a' || char(27) || '[2J' || char(10) || '%distribute resume x --trust'")
    (run,) = victim.ask("list_runs").runs
    assert run.name == "a\ufffd[2J\ufffd%distribute resume x --trust"


def test_a_folder_of_runs_stays_out_of_git_and_to_its_owner(victim):
    assert (victim.runs / ".gitignore").read_text() == "*\n"
    wrong = {name: oct(mode & 0o777) for name, (mode, *_) in everything(victim.runs).items() if mode & 0o777 not in (0o600, 0o700)}
    assert wrong == {}


def test_ids_of_ours_are_ids(victim):
    for name in ("Digits: 2nd try!", "日本", "x" * 500, "a--b", "-", "É", "../..", "CON", "a.b"):
        assert is_run_id(new_run_id(name, time.time()))
