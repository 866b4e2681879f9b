"""Hosts on one machine, for tests: each has its own network, hostname, processes, shared memory, folders and SSH server.

Made of Linux's namespaces, by root alone. Every host hangs on one process, the first of its own numbering of processes: killing that one
is the loss of the host, and nothing is left of it. The switch between them is a bridge in a network namespace of its own, so the
machine's network is not touched, and no frame can leave.

    with VirtualHosts(3) as hosts:          # h0, h1, h2 at 10.77.0.10, .11, .12
        hosts[1].run(["hostname"])
        hosts[1].unplug()
        hosts[2].lose()
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NETWORK = "10.77.0."
LIMIT = 10.0  # seconds until a host is up
_HOLDER = """
set -e
mount --make-rprivate /
hostname {name}
mount -t tmpfs -o size=2g shm /dev/shm  # 1 GiB has to be free, beside what the cluster before still has there
mount -t tmpfs run /run
mkdir -p /run/sshd
{binds}
mount --bind {folder}/hosts /etc/hosts
ip link set lo up
echo > {state}/ready
exec sleep infinity
"""
_SSHD = """
ListenAddress {address}
HostKey {folder}/host_key
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
StrictModes no
PidFile none
SetEnv PYTHONPATH={packages}
"""
_SSH = """
Host *
  StrictHostKeyChecking yes
  UserKnownHostsFile {folder}/known_hosts
"""


def why_not() -> str:
    """Return why there can be no such hosts here; empty where there can be."""
    if sys.platform != "linux" or os.geteuid():
        return "hosts are made of Linux's namespaces, by root"
    for tool in ("ip", "unshare", "nsenter", "ssh", "ssh-keygen"):
        if shutil.which(tool) is None:
            return f"there is no {tool}"
    if not Path("/usr/sbin/sshd").exists():
        return "there is no sshd (Debian's openssh-server)"
    pair = "ip link add port0 type veth peer name port1 && ip link add bridge0 type bridge && mount -t tmpfs none /mnt"
    inside = ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "sh", "-c", pair]
    tried = subprocess.run(inside, capture_output=True, check=False)
    return "" if not tried.returncode else f"namespaces cannot be made: {tried.stderr.decode().strip()}"


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # a test that is killed leaves no host behind


def _run(*argv: object) -> str:
    return subprocess.run(list(map(str, argv)), check=True, text=True, capture_output=True).stdout


def _holder(*argv: str, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True, preexec_fn=_die_with_parent
        )


def _child_of(holder: subprocess.Popen[bytes]) -> int:
    """Return the first process of the namespaces that `holder` has made."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        if children := Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split():
            return int(children[0])
        time.sleep(0.005)
    raise TimeoutError("no namespace has come up")


class VirtualHost:
    """One of them."""

    def __init__(self, number: int, lab: VirtualHosts) -> None:
        self.name, self.address = f"h{number}", f"{NETWORK}{10 + number}"
        self._lab, self._number, self._port = lab, number, ""
        self._times_on = 0
        self.state = lab.folder / self.name
        for own in ("root", "tmp"):
            (self.state / own).mkdir(parents=True)
        self._hold()

    def _hold(self) -> None:
        self._times_on += 1
        self._port = f"p{self._number}.{self._times_on}"  # Linux takes its time to remove the one before
        script = _HOLDER.format(name=self.name, folder=self._lab.folder, state=self.state, binds="\n".join(self._binds()))
        kinds = ("--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child=KILL", "--mount-proc")
        self._holder = _holder("unshare", *kinds, "sh", "-c", script, log=self.state / "log")
        self._servers: list[subprocess.Popen[bytes]] = []

    def _binds(self) -> list[str]:
        """Return what gives the host folders of its own, but for what all hosts share: an installation and the lab's folder."""
        found = []
        for own in ("root", "tmp"):
            for shared in map(str, self._lab.shared):
                if shared.startswith(f"/{own}/"):
                    target = f"{self.state}{shared}"
                    found.append(f"mkdir -p {target} && mount --bind {shared} {target}")
        # The lab's folder lies below /tmp: what is bound from it comes before that is another.
        return [*found, f"mount --rbind {self.state}/root /root", f"mount --rbind {self.state}/tmp /tmp"]

    def begin(self) -> None:
        deadline = time.monotonic() + LIMIT
        while not (self.state / "ready").exists():
            if self._holder.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self.state / "log").read_text())
            time.sleep(0.005)
        self.pid = _child_of(self._holder)
        card = f"02:00:00:00:00:{self._number:02x}"  # the same each time: others remember it
        self._lab.switch("ip", "link", "add", self._port, "type", "veth", "peer", "name", "eth0", "address", card, "netns", self.pid)
        self._lab.switch("ip", "link", "set", self._port, "master", "br0", "up")
        self._network("ip", "addr", "add", f"{self.address}/24", "brd", "+", "dev", "eth0")
        self._network("ip", "link", "set", "eth0", "up")
        ssh, folder = self.state / "root/.ssh", self._lab.folder
        ssh.mkdir(mode=0o700, exist_ok=True)
        shutil.copy(folder / "id.pub", ssh / "authorized_keys")
        shutil.copy(folder / "id", ssh / "id_ed25519")
        (ssh / "config").write_text(_SSH.format(folder=folder))
        packages = ":".join(self._lab.packages)  # who logs in imports what the notebook does, and not what is installed
        (self.state / "sshd").write_text(_SSHD.format(address=self.address, folder=folder, packages=packages))
        self._servers.append(self.popen(["/usr/sbin/sshd", "-D", "-E", self.state / "sshd.log", "-f", self.state / "sshd"]))

    def _network(self, *argv: object) -> str:
        return _run("nsenter", "-t", self.pid, "-n", *argv)

    def argv(self, argv: Sequence[object], *, env: dict[str, str] | None = None, cwd: str = "/") -> list[str]:
        """Return the command line that runs another there."""
        variables = {"HOME": "/root", "USER": "root", "PATH": os.environ["PATH"], "LANG": "C.UTF-8", **(env or {})}
        inside = ["nsenter", "-t", str(self.pid), "-n", "-m", "-u", "-i", "-p", f"--wdns={cwd}", "env", "-i"]
        return [*inside, *[f"{name}={value}" for name, value in variables.items()], *map(str, argv)]

    def run(self, argv: Sequence[object]) -> str:
        """Return what a command writes there."""
        return _run(*self.argv(argv))

    def popen(self, argv: Sequence[object]) -> subprocess.Popen[bytes]:
        nothing: Any = subprocess.DEVNULL
        return subprocess.Popen(self.argv(argv), stdin=nothing, stdout=nothing, stderr=nothing)

    def processes(self) -> list[str]:
        """Return the command lines of Python's processes there."""
        script = 'for f in /proc/[0-9]*/cmdline; do tr "\\0" " " < $f; echo; done'
        return [line for line in self.run(["sh", "-c", script]).splitlines() if "python" in line.split(" ")[0]]

    def bytes(self) -> tuple[int, int]:
        """Return how much it has sent and received."""
        line = next(line for line in self._network("cat", "/proc/net/dev").splitlines() if "eth0:" in line)
        numbers = line.partition(":")[2].split()
        return int(numbers[8]), int(numbers[0])

    @property
    def is_up(self) -> bool:
        return self._holder.poll() is None

    def unplug(self) -> None:
        """Take the cable out: nothing is refused, and nothing arrives."""
        self._lab.switch("ip", "link", "set", self._port, "nomaster")

    def plug(self) -> None:
        self._lab.switch("ip", "link", "set", self._port, "master", "br0")

    def lose(self) -> None:
        """Switch it off: its processes end at once, and nobody hears of it."""
        self.unplug()
        self.end()

    def switch_on(self) -> None:
        """Switch it on again: what was on its disks is there, and what was in its memory is not."""
        (self.state / "ready").unlink()
        self._hold()
        self.begin()

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError, AttributeError):
            os.kill(self.pid, signal.SIGKILL)
        self._holder.kill()
        self._holder.wait()
        for server in self._servers:
            server.wait()


class VirtualHosts:
    """So many hosts, which share the paths `shared` besides the lab's own folder."""

    def __init__(self, number: int, *, shared: Sequence[Path] = ()) -> None:
        self._number = number
        self.folder = Path(tempfile.mkdtemp(prefix="dtrain-hosts-", dir="/tmp"))
        self.packages = [str(path) for path in shared]
        self.shared = list(dict.fromkeys([*map(str, shared), sys.base_prefix, sys.prefix, str(self.folder)]))
        self._hosts: list[VirtualHost] = []

    @property
    def up(self) -> list[VirtualHost]:
        """Those that are switched on."""
        return [host for host in self._hosts if host.is_up]

    python = sys.executable

    def __getitem__(self, number: int) -> VirtualHost:
        return self._hosts[number]

    def __enter__(self) -> VirtualHosts:
        self._switch = _holder("unshare", "--net", "--kill-child=KILL", "--fork", "sleep", "infinity", log=self.folder / "switch.log")
        try:
            self._switch_pid = _child_of(self._switch)
            self.switch("ip", "link", "add", "br0", "type", "bridge", "forward_delay", "0", "stp_state", "0")
            self.switch("ip", "link", "set", "br0", "up")
            addresses = {f"h{number}": f"{NETWORK}{10 + number}" for number in range(self._number)}
            (self.folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{a} {name}\n" for name, a in addresses.items()))
            for key in ("id", "host_key"):
                _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / key)
            key = " ".join((self.folder / "host_key.pub").read_text().split()[:2])
            (self.folder / "known_hosts").write_text("".join(f"{name},{a} {key}\n" for name, a in addresses.items()))
            self._hosts = [VirtualHost(number, self) for number in range(self._number)]
            for host in self._hosts:
                host.begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def switch(self, *argv: object) -> str:
        return _run("nsenter", "-t", self._switch_pid, "-n", *argv)

    def __exit__(self, *_: object) -> None:
        for host in self._hosts:
            host.end()
        self._switch.kill()
        self._switch.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
