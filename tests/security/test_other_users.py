"""What another user of the machine tries: nothing of this user's is read, run or removed, and no message of theirs unpickled."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import shutil
import socket
import struct
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import zmq
from torch.distributed import HashStore, PrefixStore  # type: ignore[attr-defined]  # not in torch's own list of exports

from jupyter_dtrain.cluster.endpoint import FileEndpoint
from jupyter_dtrain.cluster.folders import Folders, sweep
from jupyter_dtrain.detached.connection import KEY, Hello, PeerConnection
from jupyter_dtrain.detached.server import Server
from jupyter_dtrain.engine.comm.peers import Peers
from jupyter_dtrain.engine.comm.process_group import ProcessGroup, Rendezvous
from jupyter_dtrain.errors import CheckpointError, ClusterError
from jupyter_dtrain.system.handshake import SIZE
from jupyter_dtrain.system.user_secret import user_secret
from tests.security.strangers import NOBODY, as_stranger, needs_another_user, network_of_its_own, stranger, why_not

pytestmark = needs_another_user
LIMIT = timedelta(seconds=30)
CPU = torch.device("cpu")
SEQUENCES = range(8)  # what gloo tells connections apart by: it counts them


class Evil:
    """Unpickled, it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def mark():
    """A path at which code that ran would have left something: in a folder that everybody may write to."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder / "mark"
    shutil.rmtree(folder)


@pytest.fixture
def folders():
    made = Folders()
    yield made
    made.remove()


def attempts_on(folders: Folders, rendezvous: Path) -> dict[str, str]:
    """Try everything that one process can do with the files of another."""
    line = folders.sockets / "line"

    def connect() -> None:
        with socket.socket(socket.AF_UNIX) as end:
            end.connect(str(line))

    return {
        "list": why_not(lambda: list(folders.rendezvous.iterdir())),
        "read": why_not(rendezvous.read_bytes),
        "write": why_not(lambda: rendezvous.open("ab")),
        "plant": why_not(lambda: (rendezvous.parent / "planted").write_bytes(b"")),
        "remove": why_not(rendezvous.unlink),
        "replace": why_not(lambda: Path(tempfile.mkdtemp()).rename(folders.private)),
        "store": why_not(lambda: dist.FileStore(str(rendezvous), 2).set("near/0", "mine")),  # type: ignore[attr-defined]
        "key": why_not((folders.sockets / KEY).read_bytes),
        "connect": why_not(connect),
    }


def test_the_files_and_sockets_of_a_cluster_are_out_of_reach(folders):
    server = Server(folders)
    rendezvous = folders.rendezvous / "generation"
    store = dist.FileStore(str(rendezvous), 1)  # type: ignore[attr-defined]
    store.set("near/0", "own")
    try:
        found = as_stranger(attempts_on, folders, rendezvous)
    finally:
        server.close()
    assert not [what for what, how in found.items() if how.startswith("it worked")], found
    assert store.get("near/0") == b"own"


def listen_as(name: str, mark: str) -> bool:
    """Wait at the abstract name of a rank, and hand whoever comes memory with a hostile pickle; return whether anything came."""
    evil = pickle.dumps(Evil(Path(mark)))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        listener.settimeout(20)
        connection, _ = listener.accept()
        memory = os.memfd_create("hostile")
        os.write(memory, evil)
        connection.settimeout(5)
        try:
            socket.send_fds(connection, [struct.pack("<I", 0)], [memory])
            return bool(connection.recv(1))
        except OSError:
            return False


def test_a_rank_hands_its_memory_to_no_other_user(mark):
    name = f"jupyter-dtrain-test-{os.getpid()}"
    store = HashStore()
    with stranger(listen_as, name, str(mark)) as got_something:
        store.set("near/0", name)  # as if they could write to the store
        with pytest.raises(ConnectionError, match="rank 0 is another user's"):
            _meet_when_there(store)
        assert got_something() is False
    assert not mark.exists()


def _meet_when_there(store: Any) -> None:
    end = time.monotonic() + 20
    while f"@jupyter-dtrain-test-{os.getpid()}" not in Path("/proc/net/unix").read_text():
        assert time.monotonic() < end
        time.sleep(0.01)
    Peers.rendezvous(store, rank=1, world_size=2, size=4096, timeout=LIMIT)


def knock(store_name: str, seconds: float) -> int:
    """Connect again and again to every abstract socket of ranks, as any of them; return how often something came back."""
    answers, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        names = {line.split("@")[1] for line in Path("/proc/net/unix").read_text().splitlines() if f"@{store_name}" in line}
        for name in names:
            with socket.socket(socket.AF_UNIX) as end_of_it:
                try:
                    end_of_it.connect(f"\0{name}")
                    end_of_it.settimeout(0.5)
                    socket.send_fds(end_of_it, [struct.pack("<I", 1)], [os.memfd_create("hostile")])
                    answers += bool(end_of_it.recv(1))
                except OSError:
                    pass
    return answers


def test_who_knocks_at_ranks_that_meet_holds_up_nobody_and_gets_nothing():
    with stranger(knock, "jupyter-dtrain-", 3.0) as answers:
        for round_ in range(40):
            store = PrefixStore(str(round_), HashStore())
            found: dict[int, Any] = {}

            def meet(rank: int, store: Any = store, found: dict[int, Any] = found) -> None:
                found[rank] = Peers.rendezvous(store, rank=rank, world_size=2, size=4096, timeout=LIMIT)

            ranks = [threading.Thread(target=meet, args=(rank,)) for rank in range(2)]
            for rank in ranks:
                rank.start()
            for rank in ranks:
                rank.join(LIMIT.total_seconds())
            assert found[0] is not None
            assert found[1] is not None
            found[0].send(b"hello")
            assert found[1].receive(5) == [b"hello"]
            for peers in found.values():
                peers.close()
        assert answers() == 0


def take_every_port(until: Any) -> int:
    """Connect to each port that comes up, in the place of any rank; return how many connections that made."""
    taken: list[socket.socket] = []
    seen: set[int] = set()
    end = time.monotonic() + 60
    while not until.is_set() and time.monotonic() < end:
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            words = line.split()
            port = int(words[1].split(":")[1], 16)
            if words[3] == "0A" and port not in seen:
                seen.add(port)
                for sequence in SEQUENCES:
                    taken.append(socket.socket())
                    taken[-1].connect(("127.0.0.1", port))
                    taken[-1].sendall(struct.pack("<q", sequence))
    return len(taken)


class OverHosts(FileEndpoint):
    """A meeting of ranks that may be on several hosts, of whose sockets the system knows nothing."""

    spans_hosts = True


def meets_late(pipe: Any, endpoint: FileEndpoint, rank: int) -> None:
    """Be a rank, the second of which comes a moment after the port of the first is there, and exchange objects."""
    try:
        rendezvous = Rendezvous(endpoint, key=b"k")
        if rank:
            # As where a rank takes its time in gloo: the other's port is up, and waits.
            make = dist.distributed_c10d._new_process_group_helper

            def make_late(*args: Any, **options: Any) -> Any:
                time.sleep(1)
                return make(*args, **options)

            dist.distributed_c10d._new_process_group_helper = make_late
        ProcessGroup().join(rendezvous, rank=rank, world_size=2, device=CPU, timeout=timedelta(seconds=10))
        found: list[Any] = [None, None]
        dist.all_gather_object(found, rank)
        pipe.send(("joined", str(found)))
    except BaseException as error:
        pipe.send((type(error).__name__, str(error)))
    os._exit(0)


def in_a_network_of_its_own(pipe: Any, endpoint: FileEndpoint) -> None:
    network_of_its_own()
    context = multiprocessing.get_context("fork")
    answered = context.Event()
    with stranger(take_every_port, answered) as taken:
        ends = [context.Pipe() for _ in range(2)]
        ranks = [context.Process(target=meets_late, args=(theirs, endpoint, rank)) for rank, (_, theirs) in enumerate(ends)]
        for rank in ranks:
            rank.start()
        answers = [ours.recv() for ours, _ in ends]
        answered.set()
        pipe.send((answers, taken()))
    os._exit(0)


@pytest.mark.parametrize(
    ("kind", "said"),
    [(FileEndpoint, f"user with the number {NOBODY}"), pytest.param(OverHosts, "and is not a rank", marks=pytest.mark.long)],
)
def test_who_takes_gloos_port_in_the_place_of_a_rank_is_found_before_anything_is_received(tmp_path, kind, said):
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=in_a_network_of_its_own, args=(theirs, kind(tmp_path / "meeting")))
    process.start()
    try:
        assert ours.poll(60), "no answer"
        answers, taken = ours.recv()
    finally:
        process.kill()
        process.join()
    assert taken >= len(SEQUENCES), "nothing was tried"
    kinds = {kind for kind, _ in answers}
    assert "ConnectionError" in kinds, answers
    assert said in "".join(text for _, text in answers)
    assert "joined" not in kinds, answers


def host_a_line(mark: str, folder: str) -> None:
    """Be a host whose messages are hostile: a socket, a key, and a pickle for whoever comes."""
    with socket.socket(socket.AF_UNIX) as listener:
        (Path(folder) / KEY).write_bytes(bytes(SIZE))
        listener.bind(str(Path(folder) / "line"))
        Path(folder, "line").chmod(0o777)
        listener.listen()
        (Path(folder) / "ready").touch()
        listener.settimeout(3)
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            return
        evil = pickle.dumps(Evil(Path(mark)))
        with contextlib.suppress(OSError):  # it has hung up
            connection.sendall(struct.pack("!i", len(evil)) + evil)


@pytest.mark.parametrize("own_folder", [False, True])
def test_a_kernel_attaches_to_no_other_users_host(mark, own_folder):
    """`own_folder`: the folder is this user's, in which the other was let make a socket."""
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o777)
        if not own_folder:
            os.chown(folder, NOBODY, NOBODY)
        with stranger(host_a_line, str(mark), str(folder)):
            end = time.monotonic() + 20
            while not (folder / "ready").exists():
                assert time.monotonic() < end
                time.sleep(0.01)
            if own_folder:
                folder.chmod(0o700)
                os.chown(folder / KEY, 0, 0)
            with pytest.raises(ClusterError, match="is not yours"):
                PeerConnection.to(folder / "line")
            if own_folder:  # not even by a socket whose owner looks right
                os.chown(folder / "line", 0, 0)
                with pytest.raises(ClusterError, match="is not yours"):
                    PeerConnection.to(folder / "line")
        assert not mark.exists()
    finally:
        shutil.rmtree(folder)


def test_a_host_hears_no_other_user(folders, mark):
    """Even one that could come to the socket, and has the key."""
    server = Server(folders)
    folders.sockets.chmod(0o777)
    folders.private.chmod(0o755)
    (folders.sockets / "line").chmod(0o777)
    key = (folders.sockets / KEY).read_bytes()

    def speak(address: str, key: bytes, mark: str) -> str:
        with socket.socket(socket.AF_UNIX) as end:
            end.settimeout(5)
            end.connect(address)
            return why_not(lambda: end.recv(SIZE, socket.MSG_WAITALL)[0])

    try:
        assert as_stranger(speak, str(folders.sockets / "line"), key, str(mark)) in ("IndexError", "ConnectionResetError")
        folders.sockets.chmod(0o700)
        line = PeerConnection.to(folders.sockets / "line")
        line.send(Hello(3, begins=True))
        assert server.receive() == Hello(3, begins=True)
    finally:
        server.close()


def test_what_engines_print_is_for_their_user(folders):
    url = f"ipc://{folders.sockets}/zmq:9"
    with zmq.Context() as context, context.socket(zmq.PUB) as publisher:
        publisher.bind(url)

        def subscribe(path: str) -> dict[str, str]:
            def connect() -> None:
                with socket.socket(socket.AF_UNIX) as end:
                    end.connect(path)

            return {"connect": why_not(connect), "list": why_not(lambda: list(Path(path).parent.iterdir()))}

        assert as_stranger(subscribe, url.removeprefix("ipc://")) == {"connect": "PermissionError", "list": "PermissionError"}


def test_a_secret_of_somebody_elses_signs_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    secret = tmp_path / "jupyter_dtrain" / "secret"
    secret.parent.mkdir()
    secret.write_bytes(b"known to them".ljust(32, b"!"))
    secret.chmod(0o600)
    os.chown(secret, NOBODY, NOBODY)
    with pytest.raises(CheckpointError, match="is not your file"):
        user_secret()
    secret.unlink()
    assert len(user_secret()) == 32


def test_nobody_elses_folders_are_swept_away(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    theirs = tmp_path / f"jupyter-dtrain-{os.getuid()}-theirs"
    theirs.mkdir()
    (theirs / "weights").touch()
    os.utime(theirs, (0, 0))
    os.chown(theirs, NOBODY, NOBODY)
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "thesis").touch()
    (tmp_path / f"jupyter-dtrain-{os.getuid()}-link").symlink_to(victim)
    sweep()
    assert (theirs / "weights").exists()
    assert (victim / "thesis").exists()
