"""The record of runs: what is written is there for another kernel, and what cannot be written is one clear error."""

import json
import math
import os
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from types import SimpleNamespace

import pytest

from jupyter_dtrain.errors import StoreError
from jupyter_dtrain.runs import connections
from jupyter_dtrain.runs.curves import Curve
from jupyter_dtrain.runs.database import DATABASE
from jupyter_dtrain.runs.record import new_run_id
from jupyter_dtrain.runs.schema import SCHEMA_VERSION, create_schema
from jupyter_dtrain.runs.store import RunStore


def add(store, run_id, name, step, time, value):
    store.add_points(run_id, [(name, Curve(step=step, time=time, value=value))])


@pytest.fixture
def store(tmp_path):
    store = RunStore(tmp_path / "dtrain-runs")
    yield store
    store.close()


def start(store, name="digits", **options):
    return store.create_run(name, "train()\n", 2, options, {"torch": "2.13.0", "seed": 7})


def sql(store, statement):
    """Execute `statement` behind the store's back."""
    with closing(sqlite3.connect(store.folder / DATABASE)) as connection, connection:
        return connection.execute(statement).fetchall()


def run_python(code, *arguments):
    """Run `code` in a process of its own and return what it printed."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def test_a_run_is_listed_with_its_curves_by_another_store_on_the_same_folder(store):
    run_id = start(store, engines=2)
    add(store, run_id, "loss", [1, 2], [10.0, 11.0], [0.5, 0.25])
    add(store, run_id, "loss", [3], [12.0], [0.125])
    add(store, run_id, "learning_rate", [1], [10.0], [0.1])
    store.finish_run(run_id, "finished")

    other = RunStore(store.folder)
    (record,) = other.list_runs()
    assert record == other.get_run(run_id)
    assert (record.run_id, record.number, record.name, record.phase, record.world_size) == (run_id, 1, "digits", "finished", 2)
    assert (record.error, record.arguments) == (None, {"engines": 2})
    assert record.ended is not None
    assert record.started <= record.ended <= time.time()
    assert other.names(run_id) == ["loss", "learning_rate"]
    assert other.points(run_id, "loss") == Curve(step=[1, 2, 3], time=[10.0, 11.0, 12.0], value=[0.5, 0.25, 0.125])
    assert len(other.points(run_id, "accuracy")) == 0


def test_the_folder_of_a_run_holds_its_cell_and_what_it_ran_with(store):
    run_id = store.create_run("naïve: été/1", "x = 'é'\n", 2, {"engines": 2}, {"torch": "2.13.0", "seed": 7})
    record = store.get_run(run_id)
    assert record.cell() == "x = 'é'\n"
    about = json.loads((record.folder / "run.json").read_text(encoding="utf-8"))
    assert about.pop("started").startswith(run_id[:10])
    assert about == {
        "run_id": run_id,
        "name": "naïve: été/1",
        "world_size": 2,
        "host": socket.gethostname(),
        "arguments": {"engines": 2},
        "environment": {"torch": "2.13.0", "seed": 7},
        "origin": {"cell_id": None, "notebook": None},
    }
    (record.folder / "cell.py").unlink()
    with pytest.raises(StoreError, match="cannot be read"):
        record.cell()


def test_nothing_is_created_before_the_first_run_and_then_for_the_owner_only(store):
    assert store.list_runs() == []
    with pytest.raises(StoreError, match="no runs in"):
        store.get_run("2026-11-21-153012-digits")
    assert not store.folder.exists()

    run_id = start(store)
    for path, mode in [(store.folder, 0o700), (store.folder / run_id, 0o700), (store.folder / DATABASE, 0o600)]:
        assert stat.S_IMODE(path.stat().st_mode) == mode, path


def test_the_folder_stays_where_it_was_when_the_notebook_changes_its_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = RunStore()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    run_id = start(store)
    assert (tmp_path / "dtrain-runs" / run_id / "cell.py").exists()


def test_ids_say_when_and_what_and_sort_by_time():
    noon = time.mktime((2026, 11, 21, 15, 30, 12, 0, 0, -1))
    assert new_run_id("Digits: 2nd try!", noon) == "2026-11-21-153012-digits-2nd-try"
    assert new_run_id("日本", noon) == "2026-11-21-153012"
    assert len(new_run_id("x" * 500, noon)) == len("2026-11-21-153012-") + 40
    assert new_run_id("z", noon) < new_run_id("a", noon + 1)


def test_runs_without_a_name_are_called_by_a_number_that_is_not_given_twice(store):
    names = [store.get_run(start(store, name=None)).name for _ in range(2)]
    store.finish_run(store.list_runs()[1].run_id, "finished")
    store.delete_run(store.list_runs()[1].run_id)
    names.append(store.get_run(start(store, name=None)).name)
    assert names == ["run-1", "run-2", "run-3"]


def test_a_run_that_is_not_there_is_answered_with_those_that_are(store):
    assert store.no_run("digits") == "There is no run 'digits' here."
    for name in (None, "digits", "more", None):
        start(store, name=name)
    assert store.find_run("1") is None
    assert store.no_run("1") == "There is no run '1' here; the last ones are: digits, more, run-4."


def test_runs_that_start_in_the_same_second_have_different_ids(store):
    ids = [start(store) for _ in range(5)]
    assert len(set(ids)) == 5
    assert [record.run_id for record in store.list_runs()] == ids


def test_points_of_many_curves_are_there_all_or_none(store):
    def curves(*columns):
        return [
            (name, Curve(step=step, time=time, value=value))
            for name, (step, time, value) in zip(("loss", "accuracy"), columns, strict=True)
        ]

    run_id = start(store)
    store.add_points(run_id, curves(([1, 2], [1.0, 2.0], [0.5, 0.25]), ([2], [2.0], [0.9])))
    with pytest.raises(ValueError, match="zip"):
        store.add_points(run_id, curves(([3], [3.0], [0.125]), ([3, 4], [3.0], [0.9])))
    assert list(store.points(run_id, "loss").step) == [1, 2]
    assert list(store.points(run_id, "accuracy").value) == [0.9]


def test_losses_that_are_not_finite_come_back_as_they_were(store):
    run_id = start(store)
    add(store, run_id, "loss", [1, 2, 3], [1.0, 2.0, 3.0], [math.nan, math.inf, -math.inf])
    first, *rest = store.points(run_id, "loss").value
    assert math.isnan(first)
    assert rest == [math.inf, -math.inf]


def test_points_after_a_step_are_taken_back_but_those_of_devices(store):
    run_id, other = start(store), start(store)
    for owner, name in ((run_id, "loss"), (run_id, "device/0/utilization"), (other, "loss")):
        add(store, owner, name, [1, 2, 3], [1.0, 2.0, 3.0], [3.0, 2.0, 1.0])
    assert store.cut_curves(run_id, 1) == {"loss": 2}
    assert store.points(run_id, "loss").step == [1]
    assert store.points(run_id, "device/0/utilization").step == store.points(other, "loss").step == [1, 2, 3]


def test_deleting_a_run_leaves_nothing_of_it_and_does_not_touch_another(store):
    doomed, kept = start(store), start(store)
    for run_id in (doomed, kept):
        add(store, run_id, "loss", [1], [1.0], [0.5])
    with pytest.raises(StoreError, match="stop it first"):
        store.delete_run(doomed)
    store.finish_run(doomed, "stopped")
    store.delete_run(doomed)

    assert [record.run_id for record in store.list_runs()] == [kept]
    assert not (store.folder / doomed).exists()
    assert store.points(kept, "loss").value == [0.5]
    assert sql(store, "SELECT count(*) FROM points") == [(1,)]
    for call in (store.get_run, store.names, store.delete_run):
        with pytest.raises(StoreError, match="no run"):
            call(doomed)


def test_a_run_ends_as_an_ended_phase_with_its_error(store):
    run_id = start(store)
    with pytest.raises(ValueError, match="running"):
        store.finish_run(run_id, "running")
    store.finish_run(run_id, "failed", "ValueError: no")
    assert (store.get_run(run_id).phase, store.get_run(run_id).error) == ("failed", "ValueError: no")


CREATE = """
import sys
from pathlib import Path
from jupyter_dtrain.runs.curves import Curve
from jupyter_dtrain.runs.store import RunStore
store = RunStore(Path(sys.argv[1]))
for i in range(int(sys.argv[2])):
    run_id = store.create_run("digits", "train()", 2, {}, {})
    for step in range(10):
        curve = Curve(step=[step], time=[float(step)], value=[1 / (step + 1)])
        store.add_points(run_id, [("loss", curve)])
    print(run_id)
"""


def test_a_run_whose_kernel_died_is_shown_as_failed_and_can_be_deleted(store):
    mine = start(store)
    orphan = run_python(CREATE, store.folder, 1).strip()
    records = {record.run_id: record for record in store.list_runs()}
    assert records[mine].phase == "running"
    assert records[orphan].phase == "failed"
    assert "kernel that ran it" in records[orphan].error
    assert store.points(orphan, "loss").step == list(range(10))
    store.delete_run(orphan)
    assert [record.run_id for record in store.list_runs()] == [mine]


def test_a_kernel_that_was_killed_is_gone_even_before_its_parent_has_asked_after_it(store):
    code = CREATE.replace("print(run_id)", "print(run_id, flush=True); sys.stdin.read()")
    command = [sys.executable, "-c", code, str(store.folder), "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as kernel:
        assert kernel.stdout
        run_id = kernel.stdout.readline().strip()
        assert store.get_run(run_id).phase == "running"
        kernel.kill()
        deadline = time.monotonic() + 30
        while store.get_run(run_id).phase == "running":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert store.get_run(run_id).phase == "failed"


def test_the_process_id_alone_does_not_make_a_run_alive(store):
    run_id = start(store)
    sql(store, "UPDATE runs SET owner_created = owner_created - 1000")  # as if our id had been another process's before
    assert store.get_run(run_id).phase == "failed"


def test_a_run_of_another_host_is_believed_while_it_was_seen_of_late(store):
    run_id = start(store)
    sql(store, "UPDATE runs SET owner_host = 'elsewhere', owner_pid = 999999999")
    assert store.get_run(run_id).phase == "running"
    sql(store, "UPDATE runs SET seen = seen - 100000")
    assert store.get_run(run_id).phase == "failed"
    add(store, run_id, "loss", [1], [time.time()], [0.5])
    assert store.get_run(run_id).phase == "running"


def test_several_kernels_write_to_one_new_folder_at_once(store):
    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(lambda _: run_python(CREATE, store.folder, 5), range(4)))
    ids = [run_id for output in outputs for run_id in output.split()]
    assert len(set(ids)) == 20
    assert sorted(record.run_id for record in store.list_runs()) == sorted(ids)
    assert [record.number for record in store.list_runs()] == list(range(1, 21))
    for run_id in ids:
        assert store.points(run_id, "loss").step == list(range(10))


def test_tables_that_another_kernel_makes_while_they_are_looked_for_are_ours(store, monkeypatch):
    """Their version and their names are of one moment: else there are tables, and no version of them."""
    connect, looked = sqlite3.connect, list[str]()

    class Beside(sqlite3.Connection):
        def execute(self, statement, *arguments):
            if "sqlite_schema" in statement and not looked:
                looked.append(statement)
                with (
                    closing(connect(store.folder / DATABASE, isolation_level=None, timeout=0)) as other,
                    suppress(sqlite3.OperationalError),
                ):
                    create_schema(other)  # it may as well be told to wait
            return super().execute(statement, *arguments)

    monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: connect(*args, **options, factory=Beside))
    run_id = start(store)
    assert len(looked) == 1
    assert [run.run_id for run in store.list_runs()] == [run_id]


def test_a_file_that_another_kernel_has_only_begun_holds_no_runs(store):
    store.folder.mkdir()
    with closing(sqlite3.connect(store.folder / DATABASE, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode = WAL")
        assert store.list_runs() == []


def test_a_new_folder_that_another_kernel_prepares_this_moment_is_waited_for(store, monkeypatch):
    """SQLite's own timeout does not do that: it fails at once."""
    store.folder.mkdir()
    with closing(sqlite3.connect(store.folder / DATABASE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        waited = []

        def wait(seconds):
            waited.append(seconds)
            other.execute("ROLLBACK")

        monkeypatch.setattr(connections, "time", SimpleNamespace(monotonic=time.monotonic, sleep=wait))
        run_id = start(store)
    assert len(waited) == 1
    assert [run.run_id for run in store.list_runs()] == [run_id]


def test_several_threads_end_their_runs_at_once(store):
    """As trials do that run side by side."""
    runs = [start(store) for _ in range(24)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda run_id: store.finish_run(run_id, "finished"), runs))
    assert [run.phase for run in store.list_runs()] == ["finished"] * 24


def test_several_threads_write_at_once(store):
    run_id = start(store)

    def write(thread):
        for step in range(50):
            add(store, run_id, f"curve {thread}", [step], [0.0], [float(thread)])

    threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(store.names(run_id)) == [f"curve {i}" for i in range(4)]
    for i in range(4):
        assert store.points(run_id, f"curve {i}") == Curve(step=list(range(50)), time=[0.0] * 50, value=[float(i)] * 50)


def test_a_record_of_a_newer_version_is_not_touched(store):
    start(store)
    store.close()
    sql(store, f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    for call in (store.list_runs, lambda: start(store)):
        with pytest.raises(StoreError, match="newer version"):
            call()


def test_a_file_that_is_no_database_is_an_error_that_names_the_folder(store):
    store.folder.mkdir()
    (store.folder / DATABASE).write_text("not a database, " * 100)
    with pytest.raises(StoreError, match="dtrain-runs cannot be used"):
        start(store)


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    store = RunStore(tmp_path / "file" / "dtrain-runs")
    with pytest.raises(StoreError, match="writable"):
        start(store)
    assert store.list_runs() == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_can_be_read(store):
    run_id = start(store)
    store.finish_run(run_id, "finished")
    store.close()
    store.folder.chmod(0o500)
    try:
        assert [record.run_id for record in store.list_runs()] == [run_id]
        with pytest.raises(StoreError, match="writable"):
            start(store)
    finally:
        store.folder.chmod(0o700)


def test_a_full_disk_is_an_error_that_loses_nothing_written_before(store):
    run_id = start(store)
    add(store, run_id, "loss", [1], [1.0], [0.5])
    with store._database.reading() as connection:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages + 1}")
    many = list(range(100_000))
    with pytest.raises(StoreError, match="full"):
        add(store, run_id, "loss", many, [1.0] * len(many), [0.5] * len(many))
    assert store.points(run_id, "loss").step == [1]
    add(store, run_id, "loss", [2], [2.0], [0.25])  # there is room again
    assert store.points(run_id, "loss").step == [1, 2]


def test_a_run_that_could_not_be_written_leaves_no_folder(store, monkeypatch):
    start(store)
    before = sorted(store.folder.iterdir())

    def full(path, text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("jupyter_dtrain.runs.store.write_new", full)
    with pytest.raises(StoreError, match="No space left"):
        start(store)
    store.close()
    assert [path for path in sorted(store.folder.iterdir()) if path.is_dir()] == [path for path in before if path.is_dir()]
    assert len(store.list_runs()) == 1


def test_a_folder_that_was_deleted_while_the_kernel_ran_is_noticed_and_made_again(store):
    run_id = start(store)
    for path in sorted(store.folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    store.folder.rmdir()
    with pytest.raises(StoreError, match="no runs in"):
        add(store, run_id, "loss", [1], [1.0], [0.5])
    assert store.list_runs() == []
    assert store.get_run(start(store)).number == 1


def test_a_record_from_elsewhere_cannot_name_a_folder_outside(store, tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir()
    start(store)
    sql(store, "UPDATE runs SET run_id = '../victim', phase = 'finished'")
    with pytest.raises(StoreError, match=r"no run '\.\./victim'"):
        store.delete_run("../victim")
    assert victim.exists()
