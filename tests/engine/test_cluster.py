"""Clusters of local engines: what a start gives, and that nothing of them stays."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import Any

import psutil
import pytest

from jupyter_dtrain.cluster import folders, launch_config, ranked_engines
from jupyter_dtrain.cluster.launch_config import template_command
from jupyter_dtrain.cluster.local import LocalCluster
from jupyter_dtrain.cluster.startup import Disturbed
from jupyter_dtrain.cluster_options import ClusterOptions
from jupyter_dtrain.errors import ClusterError
from jupyter_dtrain.system.resources import OVERFLOW

LIMIT = 30.0  # seconds; every wait below ends at a condition, this is for the day it never comes


def wait_until(condition: Callable[[], object], limit: float = LIMIT) -> None:
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def processes_with(mark: str) -> list[psutil.Process]:
    """Return every process that has `mark` in its environment, whoever its parent is."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and mark in process.environ().values() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            pass  # gone, or not ours
    return found


@pytest.fixture(scope="module")
def cluster():
    """Two engines that the tests share; none may harm them."""
    cluster = LocalCluster.start(ClusterOptions(num_engines=2, device="cpu"))
    yield cluster
    cluster.stop()


@pytest.fixture
def mark(monkeypatch):
    """A word that all processes inherit which are started in this test."""
    mark = uuid.uuid4().hex
    monkeypatch.setattr(ranked_engines, "WARM_MODULES", ())  # these clusters compute nothing
    monkeypatch.setenv("DTRAIN_TEST_MARK", mark)
    yield mark
    for process in processes_with(mark):  # of a test that failed
        process.kill()


# -- a running cluster -----------------------------------------------------------------------------------------------


def test_all_engines_answer_in_rank_order(cluster):
    cluster.view.execute("import os; rank = int(os.environ['JUPYTER_DTRAIN_RANK']); pid = os.getpid()", block=True)
    assert cluster.view.pull("rank", block=True) == [0, 1]
    assert cluster.view.pull("pid", block=True) == [engine.pid for engine in cluster.engines]
    assert [(engine.rank, engine.device) for engine in cluster.engines] == [(0, "cpu"), (1, "cpu")]
    assert cluster.alive
    assert cluster.dead_ranks() == []


def test_every_rank_has_its_environment(cluster):
    cluster.view.execute("import os; environment = dict(os.environ); folder = os.getcwd()", block=True)
    for plan, environment in zip(cluster.device_plans, cluster.view.pull("environment", block=True), strict=True):
        assert environment.items() >= plan.environment().items()
        assert environment["OMP_NUM_THREADS"] == str(plan.num_threads)
        loopback = [address.address for address in psutil.net_if_addrs()[environment["GLOO_SOCKET_IFNAME"]]]
        assert "127.0.0.1" in loopback
        assert environment["JUPYTER_DTRAIN_BLOBS"] == str(cluster.blob_dir)
        assert not [name for name in environment if name.startswith("JPY_")]
    assert cluster.view.pull("folder", block=True) == [str(Path.cwd())] * 2  # relative paths of the notebook hold


def test_torch_is_imported_before_the_first_cell(cluster):
    assert cluster.wait_warm(timedelta(seconds=60))
    cluster.view.execute("import sys; loaded = 'torch' in sys.modules", block=True)
    assert cluster.view.pull("loaded", block=True) == [True, True]


def test_what_is_imported_is_looked_at_by_no_engine_that_looks_for_garbage(cluster):
    """It is frozen, without having been looked at before."""
    assert min(cluster.view.apply_sync(gc.get_freeze_count)) > 100_000


def test_folders_are_private(cluster):
    for folder in (cluster.private_dir, cluster.blob_dir):
        assert folder.stat().st_mode & 0o777 == 0o700
        assert folder.stat().st_uid == os.getuid()


def test_what_finds_no_room_in_shared_memory_has_a_place_on_a_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(folders, "SHARED_MEMORY_AT_LEAST", 0)
    made = folders.Folders()
    try:
        assert made.blobs.parent == tmp_path
        overflow = (made.blobs / OVERFLOW).resolve()
        assert overflow.parent == made.private
        assert overflow.stat().st_mode & 0o777 == 0o700
    finally:
        made.remove()
    assert not overflow.exists()


def test_nothing_listens_but_sockets_in_a_private_folder(cluster):
    processes = [psutil.Process(pid) for pid in cluster.pids().values()]
    ports = [connection for process in processes for connection in process.net_connections(kind="inet")]
    assert ports == []
    names = {str(connection.laddr) for process in processes for connection in process.net_connections(kind="unix")} - {""}
    assert len(names) > 5  # the controller's own
    assert {Path(name).parent for name in names} == {cluster._folders.sockets}
    assert cluster._folders.sockets.parent.stat().st_mode & 0o777 == 0o700


def test_sockets_that_multiprocessing_makes_go_with_the_cluster(cluster):
    assert set(cluster.view.apply_sync(get_temp_dir)) == {str(cluster._folders.sockets)}


def test_a_signal_reaches_a_busy_engine_and_no_other(cluster, tmp_path):
    code = f"""
        import os, pathlib, time
        pathlib.Path({str(tmp_path)!r}, os.environ["JUPYTER_DTRAIN_RANK"]).touch()
        while not pathlib.Path({str(tmp_path)!r}, "leave").exists():
            time.sleep(0.01)
    """
    first, second = (cluster.client[rank].execute(textwrap.dedent(code), block=False) for rank in (0, 1))
    try:
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2)  # both are in the loop
        cluster.client.send_signal(signal.SIGINT, targets=0, block=True)
        with pytest.raises(Exception, match="KeyboardInterrupt"):
            first.get(timeout=LIMIT)
        assert not second.ready()
    finally:
        (tmp_path / "leave").touch()
    second.get(timeout=LIMIT)
    assert cluster.view.apply_sync(int, "3") == [3, 3]


def _told_to_end():
    import multiprocessing
    import time

    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    process.start()
    process.terminate()
    process.join(20)
    exitcode = process.exitcode
    process.kill()
    return exitcode


def test_a_process_that_an_engine_has_forked_ends_when_it_is_told_to(cluster):
    assert cluster.client[:].apply_sync(_told_to_end) == [-signal.SIGTERM] * len(cluster.engine_ids)


def test_a_signal_that_does_not_exist_is_an_error(cluster):
    with pytest.raises(Exception, match="SIGNOTHING"):
        cluster.client.send_signal("SIGNOTHING", targets=0, block=True)
    assert cluster.alive


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_of_the_kernel_cannot_stop_the_cluster(cluster):
    pid = os.fork()
    if pid == 0:
        cluster.stop()
        os._exit(0)
    os.waitpid(pid, 0)
    assert cluster.alive
    assert cluster.private_dir.exists()
    assert cluster.view.apply_sync(int, "5") == [5, 5]


# -- starting and stopping -------------------------------------------------------------------------------------------


def test_two_clusters_side_by_side_stop_one_by_one(mark):
    """One is started in a running event loop, as in a notebook, the other in a thread, as on a subshell."""
    started: dict[str, LocalCluster] = {}
    said: list[str] = []

    async def cell() -> None:
        started["loop"] = LocalCluster.start(ClusterOptions(num_engines=1, device="cpu"), on_progress=said.append)

    def handler() -> None:
        started["thread"] = LocalCluster.start(ClusterOptions(num_engines=2, device="cpu"))

    thread = threading.Thread(target=handler)
    thread.start()
    try:
        asyncio.run(cell())
        thread.join(LIMIT)
        first, second = started["loop"], started["thread"]
        assert said[0] == "starting 1 engine"
        assert said[-1] == "1 of 1 engines up"
        assert first.view.apply_sync(int, "1") == [1]
        folders_of_first = [first.private_dir, first.blob_dir]

        first.stop()
        first.stop()
        assert not first.alive
        assert first.dead_ranks() == [0]
        assert not any(folder.exists() for folder in folders_of_first)
        assert {process.pid for process in processes_with(mark)} >= set(second.pids().values())
        assert second.alive
        assert second.view.apply_sync(int, "2") == [2, 2]
    finally:
        for one in started.values():
            one.stop()
    assert processes_with(mark) == []


def test_a_killed_engine_is_noticed_and_leaves_the_other(mark):
    cluster = LocalCluster.start(ClusterOptions(num_engines=2, device="cpu"))
    try:
        cluster.wait_warm(timedelta(seconds=LIMIT))
        task = cluster.view.execute("import time; time.sleep(600)", block=False)
        os.kill(cluster.pids()["engine-1"], signal.SIGKILL)
        wait_until(lambda: cluster.dead_ranks() == [1])
        assert not cluster.alive
        wait_until(lambda: cluster.client.ids == [0])
        assert (
            len(processes_with(mark)) == 5 if sys.platform == "linux" else 4
        )  # guard, template, controller, its heart monitor, one engine
        assert psutil.pid_exists(cluster.pids()["engine-0"])
        cluster.client.send_signal(signal.SIGINT, targets=0)
        with pytest.raises(Exception, match="died while running"):
            task.get(timeout=LIMIT)
        assert cluster.client[0].apply_sync(int, "4") == 4
    finally:
        cluster.stop()
    assert processes_with(mark) == []


@pytest.mark.skipif(sys.platform != "linux", reason="engines are forked on Linux only")
def test_engines_start_without_the_process_that_they_are_forked_from(mark):
    cluster = LocalCluster.start(ClusterOptions(num_engines=2, device="cpu"))
    try:
        template = psutil.Process(cluster.pids()["template"])
        assert psutil.Process(cluster.pids()["engine-0"]).cmdline() == template.cmdline()
        template.suspend()
        os.kill(cluster.pids()["engine-1"], signal.SIGKILL)
        wait_until(lambda: cluster.dead_ranks() == [1])

        replacing = threading.Thread(target=lambda: cluster.replace([1], limit=timedelta(seconds=LIMIT)))
        replacing.start()  # asks a process that does not answer, and is ended for it
        wait_until(lambda: not cluster.dead_ranks())
        replacing.join(LIMIT)
        assert not template.is_running()
        assert cluster.view.apply_sync(os.getpid) == [engine.pid for engine in cluster.engines]
        assert psutil.Process(cluster.engines[1].pid).cmdline() != template_command(())

        os.kill(cluster.pids()["engine-0"], signal.SIGKILL)
        wait_until(lambda: cluster.dead_ranks() == [0])
        cluster.replace([0], limit=timedelta(seconds=LIMIT))
        assert cluster.view.apply_sync(os.getpid) == [engine.pid for engine in cluster.engines]
    finally:
        cluster.stop()
    assert processes_with(mark) == []


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="engines are forked on Linux only")
def test_an_engine_is_ended_while_it_is_being_forked():
    cluster = LocalCluster.start(ClusterOptions(num_engines=1, device="cpu"))
    try:
        os.kill(cluster.pids()["engine-0"], signal.SIGKILL)
        wait_until(lambda: cluster.dead_ranks() == [0])
        template, lost = psutil.Process(cluster.pids()["template"]), cluster.engine_ids
        template.suspend()

        def replace() -> None:
            with pytest.raises(ClusterError, match="was killed by SIGKILL while the cluster was starting"):
                cluster.replace([0], limit=timedelta(seconds=LIMIT))

        replacing = threading.Thread(target=replace)
        replacing.start()
        wait_until(lambda: cluster.engine_ids != lost)
        cluster.send_signal(signal.SIGKILL)
        template.resume()
        wait_until(lambda: cluster.exit_status(0) == -signal.SIGKILL)
        replacing.join(LIMIT)
        assert not replacing.is_alive()
    finally:
        cluster.stop()


def test_an_engine_starts_where_the_notebook_is_now(mark, tmp_path, monkeypatch):
    cluster = LocalCluster.start(ClusterOptions(num_engines=1, device="cpu"))
    try:
        (tmp_path / "beside_the_notebook.py").write_text("found = 5")
        monkeypatch.chdir(tmp_path)
        os.kill(cluster.pids()["engine-0"], signal.SIGKILL)
        wait_until(lambda: cluster.dead_ranks() == [0])
        cluster.replace([0], limit=timedelta(seconds=LIMIT))
        cluster.view.execute("import os, beside_the_notebook; found = (os.getcwd(), beside_the_notebook.found)", block=True)
        assert cluster.view.pull("found", block=True) == [(str(tmp_path), 5)]
    finally:
        cluster.stop()


@pytest.mark.parametrize(
    ("culprit", "number"),
    [("controller", signal.SIGSTOP), ("helper", signal.SIGKILL), pytest.param("controller", signal.SIGKILL, marks=pytest.mark.long)],
)
def test_without_its_controller_no_rank_can_be_reached(culprit, number, mark):
    """A controller that is stopped is ended, and one that has lost the process which listens to hearts lets no other engine in."""
    cluster = LocalCluster.start(ClusterOptions(num_engines=2, device="cpu"))
    try:
        controller = psutil.Process(cluster.pids()["controller"])
        process = controller if culprit == "controller" else controller.children()[0]
        process.send_signal(number)
        wait_until(lambda: cluster.dead_ranks() == [0, 1])
        assert not cluster.alive
    finally:
        cluster.stop()
    assert processes_with(mark) == []


OUTLIVES = sys.platform == "linux" and hasattr(os, "pidfd_open")
"""Whether the template outlives its guard."""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_killed_guard_takes_everything_along(number, mark):
    cluster = LocalCluster.start(ClusterOptions(num_engines=1, device="cpu"))
    try:
        os.kill(cluster.pids()["guard"], number)

        def all_ended() -> bool:
            cluster.end_stopped_guard()  # as a run does, again and again
            return [process.pid for process in processes_with(mark)] == [cluster.pids()["template"]] * OUTLIVES

        wait_until(all_ended)
        assert not cluster.alive
        assert cluster.dead_ranks() == [0]
    finally:
        cluster.stop()
    assert processes_with(mark) == []
    assert not cluster.private_dir.exists()
    assert not cluster.blob_dir.exists()


def kill_guard(cluster: LocalCluster, *others: str) -> None:
    """Kill the guard, and at the same moment `others`, and wait until the cluster knows."""
    for name in (*others, "guard"):
        os.kill(cluster.pids()[name], signal.SIGKILL)
    wait_until(lambda: not cluster.alive)


@pytest.mark.skipif(not OUTLIVES, reason="there is nothing that could")
def test_the_template_becomes_the_next_guard(mark, monkeypatch):
    """Again and again; what it forks is at home in the new cluster, and nothing of the old one's is left."""
    monkeypatch.setenv("DTRAIN_TEST_UNSET", "1")
    clusters = [LocalCluster.start(ClusterOptions(num_engines=2, device="cpu"))]
    try:
        for _ in range(2):
            old = clusters[-1]
            kill_guard(old)
            monkeypatch.setenv("DTRAIN_TEST_SET", str(len(clusters) + 1))
            monkeypatch.delenv("DTRAIN_TEST_UNSET", raising=False)
            clusters.append(new := LocalCluster.start(ClusterOptions(num_engines=2, device="cpu")))
            assert new.pids()["guard"] == old.pids()["template"]
            old.stop()
            assert new.alive
            assert new.view.apply_sync(os.getpid) == [engine.pid for engine in new.engines]
            new.view.execute("import os, IPython; environment, place = dict(os.environ), IPython.paths.get_ipython_dir()", block=True)
            for plan, environment in zip(new.device_plans, new.view.pull("environment", block=True), strict=True):
                assert environment.items() >= {**new._launcher.environment, **plan.environment(), "TERM": environment["TERM"]}.items()
                assert environment["DTRAIN_TEST_SET"] == str(len(clusters))
                assert "DTRAIN_TEST_UNSET" not in environment
            assert set(new.view.pull("place", block=True)) == {str(new._folders.profile)}
            assert set(new.view.apply_sync(get_temp_dir)) == {str(new._folders.sockets)}
            assert all(str(old.private_dir) not in file for file in open_files(new))
            os.kill(new.pids()["engine-1"], signal.SIGKILL)
            wait_until(partial(lambda one: one.exit_status(1) == -signal.SIGKILL, new))
            new.replace([1], limit=timedelta(seconds=LIMIT))
    finally:
        for cluster in clusters:
            cluster.stop()
    assert processes_with(mark) == []
    assert not any(folder.exists() for cluster in clusters for folder in cluster._folders.all)


def open_files(cluster: LocalCluster) -> list[str]:
    files = [file for pid in cluster.pids().values() for file in Path(f"/proc/{pid}/fd").iterdir()]
    return [str(file.readlink()) for file in files if file.is_symlink()]


@pytest.mark.skipif(not OUTLIVES, reason="there is nothing that could")
@pytest.mark.parametrize("why", ["it is stopped", "the environment is another", pytest.param("it is dead too", marks=pytest.mark.long)])
def test_another_guard_is_started_where_the_template_cannot_be_one(why, mark, monkeypatch):
    old = LocalCluster.start(ClusterOptions(num_engines=1, device="cpu"))
    template = psutil.Process(old.pids()["template"])
    if why == "it is stopped":
        template.suspend()  # nobody would end it if its kernel were killed too: the system does
        wait_until(lambda: template.status() == psutil.STATUS_STOPPED)
    kill_guard(old, *(["template"] if why == "it is dead too" else []))
    if why == "the environment is another":
        monkeypatch.setenv("OMP_PROC_BIND", "close")  # which is read once, when its library is loaded
    else:
        wait_until(lambda: processes_with(mark) == [])
    new = LocalCluster.start(ClusterOptions(num_engines=1, device="cpu"))
    try:
        assert new.pids()["template"] != template.pid
        assert psutil.Process(new.pids()["template"]).environ().get("OMP_PROC_BIND") == os.environ.get("OMP_PROC_BIND")
        new.view.execute("import os; bind = os.environ.get('OMP_PROC_BIND')", block=True)
        assert new.view.pull("bind", block=True) == [os.environ.get("OMP_PROC_BIND")]
        assert (new.pids()["guard"] == template.pid) == (why == "the environment is another")
    finally:
        old.stop()
        new.stop()
    assert processes_with(mark) == []


@pytest.mark.parametrize("culprit", ["controller", "engine"])
def test_a_start_that_fails_says_why_and_leaves_nothing(culprit, mark, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(folders, "SHARED_MEMORY", tmp_path)
    if culprit == "controller":
        monkeypatch.setenv("PYTHONHOME", "/nonexistent")  # nothing but the guard starts
        expected = "status 1 while the cluster was starting(.|\n)*No module named 'encodings'"
    else:
        monkeypatch.setattr(launch_config, "ENGINE_ARGUMENTS", ("--IPEngine.timeout=soon",))
        expected = "engine-[01] ended with status 1(.|\n)*'soon'(.|\n)*Run `python"
    with pytest.raises(ClusterError, match=expected):
        LocalCluster.start(ClusterOptions(num_engines=2, device="cpu"))
    assert processes_with(mark) == []
    assert list(tmp_path.iterdir()) == []


def test_a_start_that_takes_too_long_is_an_error(mark):
    with pytest.raises(ClusterError, match="Only 0 of 2 engines came up in time"):
        LocalCluster.start(ClusterOptions(num_engines=2, device="cpu", start_timeout=timedelta(milliseconds=100)))
    assert processes_with(mark) == []


def test_a_start_that_is_disturbed_is_tried_again(mark, monkeypatch):
    attempts = []
    real_start = LocalCluster._start

    def start(self, plans, arrival):
        attempts.append(self)
        if len(attempts) == 1:
            raise Disturbed("disturbed")
        real_start(self, plans, arrival)

    monkeypatch.setattr(LocalCluster, "_start", start)
    cluster = LocalCluster.start(ClusterOptions(num_engines=1, device="cpu"))
    try:
        assert cluster is attempts[1]
        assert not attempts[0].private_dir.exists()
        assert cluster.view.apply_sync(int, "1") == [1]
    finally:
        cluster.stop()


# -- the kernel's end --------------------------------------------------------------------------------------------------


KERNEL = """
    import json, os, signal, sys, time
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a kernel, also where the tests run in the background
    from jupyter_dtrain.cluster import ranked_engines
    from jupyter_dtrain.cluster.local import LocalCluster
    from jupyter_dtrain.cluster_options import ClusterOptions

    def say(**values):
        print(json.dumps(values), flush=True)

    when, worker = sys.argv[1], None
    ranked_engines.WARM_MODULES = ()
    cluster = LocalCluster.start(
        ClusterOptions(num_engines=2, device="cpu"),
        on_progress=lambda sentence: when == "starting" and say(sentence=sentence),
    )
    if when == "busy":
        # One engine sits in a call that handles no signal, the other has a child in a session of its own and a forked one.
        cluster.client[0].execute("import ctypes; ctypes.PyDLL(None).sleep(600)", block=False)
        cluster.client[1].execute(
            "import os, subprocess, time; subprocess.Popen(['sleep', '600'], start_new_session=True)\\n"
            "if os.fork() == 0: time.sleep(600)\\n"
            "begun = True", block=True)
        worker = os.fork()  # the kernel's own, which holds the kernel's pipes open
        if worker == 0:
            time.sleep(600)
    if when in ("unguarded", "promoted"):
        os.kill(cluster.pids()["guard"], signal.SIGKILL)
        while cluster.alive:
            time.sleep(0.01)
        if when == "promoted":
            cluster = LocalCluster.start(ClusterOptions(num_engines=2, device="cpu"))
    say(worker=worker, pids=cluster.pids(), folders=[str(cluster.private_dir), str(cluster.blob_dir)])
    if when == "leaves":
        sys.exit()
    time.sleep(600)
"""


class Kernel:
    """A process that plays the notebook kernel: starts a cluster, says so, and waits for its end."""

    def __init__(self, when: str, folder: Path) -> None:
        environment = {**os.environ, "TMPDIR": str(folder), "HOME": str(folder)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(KERNEL), when],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def heard(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        said: dict[str, Any] = json.loads(self.process.stdout.readline())
        return said

    def end(self, number: int | None) -> None:
        if number is not None:
            self.process.send_signal(number)
        self.process.wait(LIMIT)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()


@pytest.mark.parametrize(
    ("when", "number"),
    [
        ("idle", signal.SIGKILL),
        pytest.param("busy", signal.SIGKILL, marks=pytest.mark.long),
        ("starting", signal.SIGKILL),
        pytest.param("starting", signal.SIGINT, marks=pytest.mark.long),
        ("idle", signal.SIGTERM),  # Jupyter's shutdown of a kernel that did not leave by itself
        ("leaves", None),
        ("unguarded", signal.SIGKILL),
        ("promoted", signal.SIGKILL),
        pytest.param("guard too", signal.SIGKILL, marks=pytest.mark.long),
    ],
)
def test_nothing_outlives_the_kernel(when, number, mark, tmp_path, monkeypatch):
    kernel = Kernel(when, tmp_path)
    said = kernel.heard()
    if when != "starting":
        assert len(processes_with(mark)) >= 5 or when in ("leaves", "unguarded")
    if when == "guard too":
        os.kill(said["pids"]["guard"], signal.SIGKILL)
    kernel.end(number)
    if when == "busy":
        wait_until(lambda: [process.pid for process in processes_with(mark)] == [said["worker"]], limit=10.0)
        os.kill(said["worker"], signal.SIGKILL)  # the test's own
    wait_until(lambda: not processes_with(mark), limit=10.0)
    if when in ("unguarded", "promoted", "guard too"):
        # Nobody was there to remove the folders of the guard that was killed: the next kernel does.
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        folders.sweep()
    wait_until(lambda: not list(tmp_path.glob("jupyter-dtrain-*")), limit=10.0)
    for folder in said.get("folders", []):
        assert not Path(folder).exists()
    assert not (tmp_path / ".ipython").exists()  # nothing is written into the user's profile


def test_what_a_guard_and_its_kernel_left_is_swept_away(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(folders, "SHARED_MEMORY", tmp_path / "shm")
    (tmp_path / "tmp").mkdir()
    (tmp_path / "shm").mkdir()
    left, recent = folders.Folders(), folders.Folders()
    (left.blobs / "weights").write_bytes(b"1234")
    for owned in (left, recent):
        (owned.private / folders.OWNER).unlink()  # as of a version that noted none
    long_ago = time.time() - 2 * folders.SETTLED
    for folder in (left.private, left.blobs):
        os.utime(folder, (long_ago, long_ago))

    guard = os.open(left.blobs, os.O_RDONLY)
    fcntl.flock(guard, fcntl.LOCK_EX)
    folders.sweep()
    assert (left.blobs / "weights").exists()  # its guard is alive
    os.close(guard)
    folders.sweep()
    assert not left.private.exists()
    assert not left.blobs.exists()
    assert recent.private.exists()
    assert recent.blobs.exists()


@pytest.mark.parametrize("is_asked_after", [True, False], ids=["a host", "a container whose first process waits for none"])
def test_what_a_killed_process_left_is_swept_away_at_once(tmp_path, monkeypatch, is_asked_after):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(folders, "SHARED_MEMORY", tmp_path / "shm")
    (tmp_path / "tmp").mkdir()
    (tmp_path / "shm").mkdir()
    left = folders.Folders()
    (left.blobs / "weights").write_bytes(b"1234")
    folders.sweep()
    assert (left.blobs / "weights").exists(), "whoever has made it lives, and may need it"
    ended = subprocess.Popen([sys.executable, "-c", ""])
    if is_asked_after:
        ended.wait()
    else:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    (left.private / folders.OWNER).write_text(str(ended.pid))
    guard = left.acquire()
    folders.sweep()
    assert (left.blobs / "weights").exists(), "its guard lives"
    for handle in guard:
        os.close(handle)
    folders.sweep()
    assert list((tmp_path / "tmp").iterdir()) + list((tmp_path / "shm").iterdir()) == []
    ended.wait()


def test_what_is_left_of_an_owner_whose_pid_another_process_has_by_now_is_swept_away(tmp_path, monkeypatch):
    """As where a host was switched off: it counts from 1 again."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(folders, "SHARED_MEMORY", tmp_path)
    left = folders.Folders()
    folders.sweep()
    assert left.private.exists()
    (left.private / folders.OWNER).write_text(f"{os.getpid()} 1")
    folders.sweep()
    assert not left.private.exists()


@pytest.mark.parametrize("name", ["tmp/jupyter-dtrain-{}-x/blobs", "shm/jupyter-dtrain-{}-x"])
def test_what_an_agent_has_left_on_a_host_that_was_switched_off_is_swept_away_at_once(tmp_path, monkeypatch, name):
    """Where the notebook's host has little shared memory the buffers are in a folder called as its private one."""
    for base in ("tmp", "shm"):
        (tmp_path / base).mkdir()
    begin = "AgentFiles(print).begin(pathlib.Path(sys.argv[1]))"
    agent = f"import pathlib, sys\nfrom jupyter_dtrain.cluster.hosts.agent_files import AgentFiles\n{begin}"
    blobs = tmp_path / name.format(os.getuid())
    subprocess.run([sys.executable, "-c", agent, blobs], env={**os.environ, "TMPDIR": str(tmp_path / "tmp")}, check=True)
    assert blobs.exists()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(folders, "SHARED_MEMORY", tmp_path / "shm")
    folders.sweep()
    assert list((tmp_path / "tmp").iterdir()) + list((tmp_path / "shm").iterdir()) == []


@pytest.mark.parametrize("is_in_private", [True, False])
def test_what_a_host_has_left_is_removed_unless_a_guard_holds_it(tmp_path, monkeypatch, is_in_private):
    monkeypatch.setattr(folders, "_prefix", lambda: "jupyter-dtrain-7-")
    own = tmp_path / "jupyter-dtrain-7-some"
    blobs = own / "blobs" if is_in_private else own
    blobs.mkdir(parents=True)
    guard = os.open(own, os.O_RDONLY)
    fcntl.flock(guard, fcntl.LOCK_EX)
    folders.remove_unguarded(blobs)
    assert blobs.exists()
    os.close(guard)
    folders.remove_unguarded(blobs)
    assert not own.exists()
    folders.remove_unguarded(blobs)


def test_a_running_cluster_is_not_swept_away(cluster, monkeypatch):
    monkeypatch.setattr(folders, "SETTLED", -1.0)
    monkeypatch.setattr(tempfile, "tempdir", str(cluster.private_dir.parent))
    monkeypatch.setattr(folders, "_prefix", lambda: cluster.private_dir.name)  # nobody else's, whatever else runs here
    folders.sweep()
    monkeypatch.setattr(folders, "_prefix", lambda: cluster.blob_dir.name)
    folders.sweep()
    assert cluster.private_dir.exists()
    assert cluster.blob_dir.exists()


def test_large_buffers_go_to_disk_where_shared_memory_is_small(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(folders, "SHARED_MEMORY_AT_LEAST", 1 << 60)
    made = folders.Folders()
    assert made.blobs.parent == made.private
    made.remove()
    assert list(tmp_path.iterdir()) == []
