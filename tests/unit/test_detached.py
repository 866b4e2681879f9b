"""What is between a detached run and a kernel: the mirror of its recorder, what it has shown, and its results on disk."""

from __future__ import annotations

import math
import multiprocessing
import os
import shutil
import socket
import threading
import time
from datetime import timedelta

import pytest

from jupyter_dtrain.checkpoint.folder import CheckpointFolder
from jupyter_dtrain.checkpoint.manifest import write_manifest
from jupyter_dtrain.cluster.folders import Folders
from jupyter_dtrain.cluster_options import ClusterOptions
from jupyter_dtrain.detached.connection import KEY, Ended, Hello, PeerConnection, Refused, Taken, Updates
from jupyter_dtrain.detached.detached_results import ENDING, DetachedResult, mark_taken, read_ending, results_of, write_ending
from jupyter_dtrain.detached.follower import Follower
from jupyter_dtrain.detached.host_start import start_host
from jupyter_dtrain.detached.journal import BATCH, Journal, read_calls, replay
from jupyter_dtrain.detached.mirror import RunMirror
from jupyter_dtrain.detached.server import Server
from jupyter_dtrain.elastic.engine_pool import EnginePool
from jupyter_dtrain.errors import CheckpointError, ClusterError
from jupyter_dtrain.host import Host
from jupyter_dtrain.protocol import PROTOCOL_VERSION, ClusterUpdate, Notice, RunUpdate, Snapshot, Steps
from jupyter_dtrain.runs.detached_index import HostFile, address_of, going, waiting
from jupyter_dtrain.runs.recorder import RunRecorder
from jupyter_dtrain.system.handshake import SIZE
from jupyter_dtrain.transport.blob_store import BlobFolder


def wait_for_kernel(host):
    deadline = time.monotonic() + 60
    while host._server.kernel is None:
        assert time.monotonic() < deadline, "no kernel has come"
        time.sleep(0.001)


@pytest.fixture
def folders():
    made = Folders()
    yield made
    made.remove()


def steps(*numbers, loss=0.5):
    count = len(numbers)
    return Steps(
        rank=0,
        step=list(numbers),
        time=[100.0 + number for number in numbers],
        loss=[loss] * count,
        weight=[1.0] * count,
        learning_rate=[0.1] * count,
        samples=[8] * count,
    )


def curves(run):
    return {curve.name: (curve.step, curve.value) for curve in run.outline(1000)}


def follow(recorder):
    """Return a recorder's mirror that was begun now, and what brings it up to date."""
    recorder.drain()
    snapshot = Snapshot(
        version=PROTOCOL_VERSION,
        cluster=ClusterUpdate(phase="running"),
        run=recorder.run_update(),
        points=recorder.snapshot_points(),
        devices=recorder.devices(),
        times=recorder.times(),
        notices=recorder.notices(),
    )
    mirror = RunMirror(recorder.run_update())
    mirror.start(snapshot)
    return mirror, lambda: mirror.apply(recorder.drain())


def test_a_mirror_has_what_its_recorder_has():
    recorder = RunRecorder(run_id="r", name="digits", world_size=1)
    recorder.apply(steps(1, 2, 3))
    recorder.apply(Notice(rank=0, text="said before"))
    mirror, update = follow(recorder)
    assert curves(mirror) == curves(recorder)
    recorder.apply(steps(4, 5, loss=math.nan))
    recorder.apply(Notice(rank=0, text="said later"))
    update()
    assert curves(mirror) == curves(recorder)
    assert [notice.text for notice in mirror.notices()] == [notice.text for notice in recorder.notices()]
    assert curves(mirror)["loss"][0] == [1, 2, 3, 4, 5]
    recorder.finish("finished")
    update()
    assert mirror.run_update() == recorder.run_update()


def test_a_mirror_goes_back_with_its_recorder():
    recorder = RunRecorder(run_id="r", name="digits", world_size=1)
    recorder.apply(steps(*range(1, 11)))
    mirror, update = follow(recorder)
    recorder.go_back(4, None)
    update()
    assert curves(mirror)["loss"][0] == [1, 2, 3, 4]
    recorder.go_back(2, None)
    recorder.apply(steps(*range(3, 13), loss=0.25))  # told before anybody heard of the step that it went back to
    update()
    assert curves(mirror)["loss"] == ([*range(1, 13)], [0.5] * 2 + [0.25] * 10)
    assert curves(mirror) == curves(recorder)


def test_a_mirror_passes_on_what_is_new_once():
    recorder = RunRecorder(run_id="r", name="digits", world_size=1)
    recorder.apply(steps(1, 2))
    mirror, update = follow(recorder)
    told = mirror.drain()
    assert [m.step for m in told if m.type == "points" and m.name == "loss"] == [[1, 2]]
    assert mirror.drain() == []
    recorder.apply(steps(3))
    update()
    assert [m.step for m in mirror.drain() if m.type == "points" and m.name == "loss"] == [[3]]


def test_the_process_of_a_mirror_dies():
    mirror = RunMirror(RunUpdate(run_id="r", name="digits", phase="running", world_size=2, started=0.0, elapsed=1.0))
    mirror.end("It was killed.")
    assert (mirror.run_update().phase, mirror.run_update().error) == ("failed", "It was killed.")


class Told:
    """Views that remember how it is with the engines."""

    def __init__(self):
        self.phases, self.news = [], threading.Semaphore(0)

    def note_cluster(self, update):
        self.phases.append(update.phase)

    def start(self, mirror):
        raise AssertionError("nothing was told of a run")

    def on_news(self):
        self.news.release()


def test_engines_of_a_run_that_has_ended_are_not_seen_stopping():
    """Its host stops them when it has told how the cell ended: whoever hears that later would see them stop for ever."""
    views = Told()
    host, kernel = map(PeerConnection, multiprocessing.Pipe())
    follower = Follower(kernel, views, is_leaving=lambda: False)
    for phase in ("running", "stopping"):
        host.send(Updates([ClusterUpdate(phase=phase)]))
        assert views.news.acquire(timeout=60)
        if phase == "running":
            follower.end_cluster()
    assert views.phases == ["running", "stopped"]
    follower.close()


class Heard:
    """An output that remembers."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *arguments, **options: self.calls.append((name, arguments, options))


def test_what_was_shown_is_shown_again(tmp_path):
    noted = []
    journal = Journal(tmp_path / "shown", on_call=lambda: noted.append(1))
    journal.stream("stdout", "epoch 0\n")
    calls, position = read_calls(journal.path, 0)
    assert calls == [("stream", ("stdout", "epoch 0\n"), {})]
    assert read_calls(journal.path, position) == ([], position)
    journal.display({"data": {"text/plain": "picture"}}, update=True)
    journal.clear(wait=True)
    journal.say("x" * 2 * BATCH)
    heard, num_reads = Heard(), 0
    while (read := read_calls(journal.path, position))[0]:
        replay(read[0], heard)
        position, num_reads = read[1], num_reads + 1
    assert heard.calls[:2] == [("display", ({"data": {"text/plain": "picture"}},), {"update": True}), ("clear", (), {"wait": True})]
    assert heard.calls[2] == ("say", ("x" * 2 * BATCH,), {})
    assert num_reads == 2, "much is read in parts"
    assert len(noted) == 4


def test_what_is_half_written_is_left_for_later(tmp_path):
    journal = Journal(tmp_path / "shown", on_call=lambda: None)
    journal.say("whole")
    journal.say("half")
    half = tmp_path / "half"
    half.write_bytes(journal.path.read_bytes()[:-1])
    assert [call[1] for call in read_calls(half, 0)[0]] == [("whole",)]


def snapshot():
    run = RunUpdate(run_id="r", name="digits", phase="failed", world_size=2, started=0.0, elapsed=1.0)
    return Snapshot(version=PROTOCOL_VERSION, cluster=ClusterUpdate(phase="stopped"), run=run)


def test_an_ending_is_read_as_it_was_written_and_by_nobody_else(tmp_path, monkeypatch):
    shown = tmp_path / "journal"
    shown.write_bytes(b"")
    folder = results_of(tmp_path)
    write_ending(folder, DetachedResult(snapshot(), error=ClusterError("lost")), shown=shown, run_id="r")
    ending = read_ending(folder, "r", trusted=False)
    assert (str(ending.error), ending.result, ending.snapshot) == ("lost", None, snapshot())
    with monkeypatch.context() as patch:
        patch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "of-somebody-else"))
        with pytest.raises(CheckpointError, match=r"was not written by you here.*`%distribute attach r --trust`"):
            read_ending(folder, "r", trusted=False)
        assert str(read_ending(folder, "r", trusted=True).error) == "lost"
    (folder / ENDING).write_bytes(b"changed")
    with pytest.raises(CheckpointError, match="What r has come to is damaged"):
        read_ending(folder, "r", trusted=True)


def test_no_room_for_the_results_leaves_nothing_behind(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _path: usage._replace(free=10))
    shown = tmp_path / "journal"
    shown.write_bytes(b"x" * 100)
    with pytest.raises(CheckpointError, match="There is no room for the results of the run"):
        write_ending(results_of(tmp_path), DetachedResult(snapshot()), shown=shown, run_id="r")
    assert list(tmp_path.iterdir()) == [shown]


@pytest.fixture
def host(tmp_path):
    """A host whose run has ended, with the folder of the run."""
    folders = Folders()
    held = folders.acquire()  # as its guard does
    server = Server(folders)
    host = Host(server, tmp_path, EnginePool(), ClusterOptions(), folders)
    host._run_folder = tmp_path / "r"
    host._run_folder.mkdir()
    yield host
    server.close()
    for handle in held:
        os.close(handle)
    folders.remove()


def test_results_wait_in_memory_until_the_disk_has_room(host, tmp_path, monkeypatch):
    monkeypatch.setattr("jupyter_dtrain.detached.server.RETRY", timedelta(seconds=0.01))
    usage = shutil.disk_usage(tmp_path)
    host._journal.stream("stdout", "epoch 0\n")
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda _path: usage._replace(free=0))
        delivery = threading.Thread(target=host._deliver, args=(DetachedResult(snapshot(), error=ClusterError("lost")),))
        delivery.start()
        while len(read_calls(host._journal.path, 0)[0]) < 2:
            assert delivery.is_alive()
        (_, (_, arguments, _)), _ = read_calls(host._journal.path, 0)
        assert arguments[0].startswith("There is no room for the results of the run in ")
        assert waiting(tmp_path) == []
    delivery.join()
    assert waiting(tmp_path) == ["r"]
    assert str(read_ending(results_of(tmp_path / "r"), "r", trusted=False).error) == "lost"
    assert len(read_calls(host._journal.path, 0)[0]) == 2, "said once"


def test_a_kernel_gets_results_that_the_disk_has_no_room_for(host, tmp_path, monkeypatch):
    monkeypatch.setattr("jupyter_dtrain.detached.detached_results._check_room", full_but_in_memory(host))
    line = PeerConnection.to(host._folders.sockets / "line")
    line.send(Hello(11))
    delivery = threading.Thread(target=host._deliver, args=(DetachedResult(snapshot(), error=ClusterError("lost")),))
    wait_for_kernel(host)
    delivery.start()
    while not isinstance(message := line.receive(), Ended):
        assert message is not None
    assert message.folder.parent == host._folders.blobs
    assert str(read_ending(message.folder, "r", trusted=False).error) == "lost"
    line.send(Taken())
    delivery.join()
    assert waiting(tmp_path) == []


def test_a_kernel_gets_results_whose_run_has_lost_its_folder(host, tmp_path):
    host._run_folder.rmdir()
    line = PeerConnection.to(host._folders.sockets / "line")
    line.send(Hello(11))
    wait_for_kernel(host)
    delivery = threading.Thread(target=host._deliver, args=(DetachedResult(snapshot(), error=ClusterError("lost")),))
    delivery.start()
    while not isinstance(message := line.receive(), Ended):
        assert message is not None
    assert str(read_ending(message.folder, "r", trusted=False).error) == "lost"
    line.send(Taken())
    delivery.join()


def test_a_checkpoint_that_is_deleted_takes_no_results_along_that_are_being_written(host, tmp_path, monkeypatch):
    run_folder = tmp_path / "r"
    checkpoints, blobs = CheckpointFolder(run_folder), BlobFolder(tmp_path / "memory")
    checkpoints.write([b"rank 0"], blobs, [], step=120, place="line 7")

    def when_half_written(*args, **options):
        if checkpoints.newest_first():
            checkpoints.delete(120)
        return write_manifest(*args, **options)

    monkeypatch.setattr("jupyter_dtrain.detached.server.RETRY", timedelta(seconds=0.01))
    monkeypatch.setattr("jupyter_dtrain.detached.detached_results.write_manifest", when_half_written)
    host._deliver(DetachedResult(snapshot(), error=ClusterError("lost")))
    assert checkpoints.newest_first() == []
    assert str(read_ending(results_of(run_folder), "r", trusted=False).error) == "lost"
    assert read_calls(host._journal.path, 0)[0] == [], "nothing went wrong"


def full_but_in_memory(host):
    def check(place, _ending, _shown):
        if place != host._folders.blobs:
            raise CheckpointError("full")

    return check


def test_runs_are_found_by_what_lies_in_their_folders(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert (going(tmp_path), waiting(tmp_path)) == ([], [])
    host = HostFile(tmp_path / "a", tmp_path / "line")
    assert (going(tmp_path), address_of(tmp_path / "a"), address_of(tmp_path / "b")) == (["a"], tmp_path / "line", None)
    host.remove()
    assert going(tmp_path) == []
    write_ending(results_of(tmp_path / "b"), DetachedResult(snapshot()), shown=None, run_id="b")
    assert waiting(tmp_path) == ["b"]
    mark_taken(results_of(tmp_path / "b"))
    assert waiting(tmp_path) == []


def test_a_host_that_was_killed_is_not_there(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "host.json").write_text('{"address": "/tmp/nobody"}')  # and nobody holds its lock
    assert address_of(tmp_path / "a") is None


def test_one_kernel_at_a_time(folders):
    server = Server(folders)
    try:
        first = PeerConnection.to(folders.sockets / "line")
        first.send(Hello(11, begins=True))
        assert server.receive() == Hello(11, begins=True)
        second = PeerConnection.to(folders.sockets / "line")
        second.send(Hello(22))
        assert second.receive() == Refused(11)
        first.close()
        assert server.receive() is None, "it is gone"
    finally:
        server.close()


def test_a_kernel_that_is_stopped_before_its_first_word_holds_up_no_other(folders):
    server = Server(folders)
    try:
        with socket.socket(socket.AF_UNIX) as silent:
            silent.connect(str(folders.sockets / "line"))
            wordless = PeerConnection.to(folders.sockets / "line")
            line = PeerConnection.to(folders.sockets / "line")
            line.send(Hello(11, begins=True))
            assert server.receive() == Hello(11, begins=True)
            wordless.close()
    finally:
        server.close()


def test_who_waits_for_a_message_hears_that_the_line_is_closed(folders):
    server = Server(folders)
    try:
        line = PeerConnection.to(folders.sockets / "line")
        heard = []
        waits = threading.Thread(target=lambda: heard.append(line.receive()))
        waits.start()
        line.close()
        waits.join()
        assert heard == [None]
        line.send(Hello(11))  # and nothing comes of what is said then
    finally:
        server.close()


def test_who_does_not_know_the_key_is_not_heard(folders):
    server = Server(folders)
    address = folders.sockets / "line"
    try:
        for says in (b"", b"short", bytes(SIZE), bytes(2 * SIZE)):
            with socket.socket(socket.AF_UNIX) as unheard:
                unheard.connect(str(address))
                unheard.sendall(says)
        key = folders.sockets / KEY
        before = key.read_bytes()
        for wrong in (b"", b"\0" * SIZE, before[:-1], before + b"x"):
            key.write_bytes(wrong)
            with pytest.raises((ClusterError, EOFError, OSError)):
                PeerConnection.to(address)
        key.write_bytes(before)
        line = PeerConnection.to(address)  # and those who do still are
        line.send(Hello(11, begins=True))
        assert server.receive() == Hello(11, begins=True)
    finally:
        server.close()


def test_what_one_end_has_shown_opens_no_other(folders):
    """Somebody in the middle sends a kernel its own challenge back, and what another kernel answers to that."""
    folder = folders.sockets
    (folder / KEY).write_bytes(b"k" * SIZE)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "line"))
        listener.listen()
        errors = []

        def attach():
            try:
                PeerConnection.to(folder / "line")
            except Exception as error:
                errors.append(type(error))

        kernels = [threading.Thread(target=attach) for _ in range(2)]
        for kernel in kernels:
            kernel.start()
        ends = [listener.accept()[0] for _ in kernels]
        challenges = [end.recv(SIZE, socket.MSG_WAITALL) for end in ends]
        for end, challenge in zip(ends, reversed(challenges), strict=True):
            end.sendall(challenge)
        answers = [end.recv(SIZE, socket.MSG_WAITALL) for end in ends]
        for end, answer in zip(ends, reversed(answers), strict=True):
            end.sendall(answer)
        for kernel in kernels:
            kernel.join(20)
        for end in ends:
            end.close()
    assert errors == [ClusterError] * 2


def test_who_is_silent_is_not_waited_for(folders, monkeypatch):
    monkeypatch.setattr("jupyter_dtrain.detached.connection.LIMIT", timedelta(milliseconds=100))
    (folders.sockets / KEY).write_bytes(b"k" * SIZE)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folders.sockets / "line"))
        listener.listen()
        with pytest.raises(TimeoutError):
            PeerConnection.to(folders.sockets / "line")


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o710])
def test_a_socket_in_a_folder_that_others_can_enter_is_not_asked(folders, mode):
    server = Server(folders)
    try:
        folders.sockets.chmod(mode)
        with pytest.raises(ClusterError, match="is not yours"):
            PeerConnection.to(folders.sockets / "line")
    finally:
        server.close()


def test_what_is_no_socket_is_not_asked(folders):
    os.mkfifo(folders.sockets / "line")
    with pytest.raises(ClusterError, match="is not yours"):
        PeerConnection.to(folders.sockets / "line")
    (folders.sockets / "link").symlink_to(folders.sockets)
    with pytest.raises(ClusterError, match="is not yours"):
        PeerConnection.to(folders.sockets / "link" / "line")


def test_a_run_that_could_sign_no_results_is_not_begun(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "file" / "data"))
    with pytest.raises(CheckpointError, match="cannot be created or read: Not a directory"):
        start_host(ClusterOptions(num_engines=1), tmp_path)


def test_a_line_has_a_short_name_wherever_temporary_files_are(tmp_path, monkeypatch):
    long = tmp_path / ("long" * 30) / ("and-longer" * 10)
    long.mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(long))
    folders = Folders()
    try:
        assert folders.private.is_relative_to(long)
        assert folders.sockets.stat().st_mode & 0o777 == 0o700
        server = Server(folders)
        PeerConnection.to(folders.sockets / "line").close()
        server.close()
    finally:
        folders.remove()
    assert not folders.sockets.exists()
