"""The guard: the process that starts a cluster's processes and ends them, so that none outlives the notebook kernel.

Controller and engines are its children, and it watches the kernel. A killed kernel cannot clean up, so the guard does: it ends all
descendants, including those that left their parents, and removes the cluster's folders. On Linux it adopts orphans
(``PR_SET_CHILD_SUBREAPER``), so no descendant escapes, and its children die with it if it is killed. The exception is the template, which
watches the kernel as well and becomes the next guard (``promotion.py``).

It runs as a script with the standard library, ``process_tree.py`` and ``template_line.py`` only, without ``site``. So it starts in about
20 ms, stays small, and does not depend on an environment that may be changing. ``guarded_processes.py`` is the kernel's side. Both
exchange lines of JSON:

- in: ``{"do": "start", "name", "argv", "env", "cwd", "log", "how"}``, ``{"do": "signal", "name", "signal"}``, ``{"do": "stop"}``;
  the end of the input means stop too. `how` is ``"exec"``, ``"template"`` for the process that others are forked from
  (``forkserver.py``), or ``"fork"`` for one of those, which is executed instead if there is no template.
- out: ``{"event": "started", "name", "pid"}``, ``{"event": "exited", "name", "status"}`` (negative: the signal)
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from .process_tree import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, end_all_below, prctl
    from .template_line import Template
else:  # as a script, behind the standard library
    sys.path.append(os.path.dirname(__file__))  # noqa: PTH120
    from process_tree import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, end_all_below, prctl
    from template_line import Template

GRACE = 0.5  # seconds between SIGTERM and SIGKILL
PATIENCE = 1.0  # seconds that a process which others need may be stopped (SIGSTOP)
GIVE_UP = 10.0  # seconds after which an unkillable process (stuck in a driver) is abandoned
POLL = 0.25  # seconds between checks of the parent's pid if the system has no pidfd


class Guard:
    """Start processes, report their ends, and end all of them when the kernel `parent` is gone.

    Parameters
    ----------
    parent : int
        Pid of the kernel, whose child this process is.
    folders : list of str
        Locked while the guard runs, so that other clusters see them in use, and removed at the end.
    line : int, optional
        File descriptor of the template's connection to the kernel.
    kernel : int, optional
        A pidfd of the kernel, for a guard that is not its child.
    """

    def __init__(self, parent: int, folders: list[str], line: int | None = None, kernel: int | None = None) -> None:
        self.parent, self.is_child = parent, kernel is None
        self.folders, self.line, self.kernel = folders, line, kernel
        self.names: dict[int, str] = {}
        self.needed: set[int] = set()  # pids that engines and kernel depend on: the controller and the template
        self.stopped: dict[int, float] = {}  # pid → time when it was stopped
        self.stopping = False
        self.prctl = prctl()
        self.input = b""
        self.template: Template | None = None
        self.due: dict[str, list[int]] = {}  # name → signals for a process that is being forked
        self.strays: dict[int, int] = {}  # pid → exit status of an ended unknown process, whose name the template may yet report

    def run(self) -> None:
        """Serve until told to stop or until the kernel is gone, then clean up."""
        for folder in self.folders:
            fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)  # held until this process ends
        self.prctl(PR_SET_CHILD_SUBREAPER, 1)
        awake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if hasattr(os, "pipe2") else os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):  # handlers instead of SIG_IGN, which engines would inherit
            signal.signal(number, lambda _number, _frame: None)
        signal.signal(signal.SIGTERM, self.stop)
        try:
            watched = [sys.stdin.fileno(), awake]
            try:
                self.kernel = self.kernel or os.pidfd_open(self.parent)
                watched.append(self.kernel)
            except (AttributeError, OSError):
                pass  # no pidfd (not Linux, or a sandbox): the loop polls the parent's pid instead
            while not self.stopping and (os.getppid() == self.parent or not self.is_child):
                replies = [] if self.template is None else [self.template.replies]
                timeout = None if self.kernel is not None and not self.stopped else POLL
                ready = select.select([*watched, *replies], [], [], timeout)[0]
                if self.kernel in ready:
                    break
                if self.template is not None and self.template.replies in ready:
                    for name, pid in self.template.forked():
                        self.known(name, pid)
                if awake in ready:
                    os.read(awake, 4096)
                if sys.stdin.fileno() in ready:
                    self.read()
                self.reap()
                self.end_stopped()
        finally:
            self.end_all()
            self.remove_folders()

    def stop(self, *_: object) -> None:
        """End the loop of `run`."""
        self.stopping = True

    def read(self) -> None:
        """Carry out the kernel's requests."""
        chunk = os.read(sys.stdin.fileno(), 1 << 16)
        if not chunk:
            self.stop()
        *lines, self.input = (self.input + chunk).split(b"\n")
        for line in lines:
            request = json.loads(line)
            match request.pop("do"):
                case "start":
                    self.start(**request)
                case "signal":
                    self.signal(**request)
                case "stop":
                    self.stop()

    def start(self, *, name: str, argv: list[str], env: dict[str, str], cwd: str, log: str, how: str) -> None:
        """Start a process in a session of its own, with its output appended to the file `log`."""
        if how == "fork" and self.template is not None:
            self.template.ask(name=name, argv=argv, env=env, cwd=cwd, log=log)
            return
        template = Template(env, self.kernel, self.line) if how == "template" else None
        guard = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                # In the guard's session: if the guard dies, the system ends a stopped template (SIGHUP to the orphaned process group).
                os.setsid() if template is None else os.setpgid(0, 0)
                self.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                os.dup2(output, 1)
                os.dup2(output, 2)
                if template is not None:
                    template.connect()
                else:
                    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.chdir(cwd)
                if os.getppid() == guard:  # the guard may have died before PDEATHSIG was set
                    os.execvpe(argv[0], argv, env)
            except OSError as error:
                os.write(2, f"{argv[0]}: {error}\n".encode())
            finally:
                os._exit(127)
        if template is not None:
            template.start(pid)
            self.template = template
        if how != "fork":
            self.needed.add(pid)
        self.known(name, pid)

    def signal(self, *, name: str, signal: int) -> None:
        """Send a signal to the process `name`, once it exists if it is being forked; ignored if it is gone."""
        pids = [pid for pid, known in self.names.items() if known == name]
        for pid in pids:
            os.kill(pid, signal)  # not reaped yet, so its pid was not reused
        if not pids and self.template is not None and name in self.template.waiting:
            self.due.setdefault(name, []).append(signal)

    def known(self, name: str, pid: int) -> None:
        """Report that the process `name` exists, and its end if that was seen first."""
        self.names[pid] = name
        self.report(event="started", name=name, pid=pid)
        due = self.due.pop(name, ())
        if pid in self.strays:
            self.ended(pid, self.strays.pop(pid))
            return
        for number in due:
            os.kill(pid, number)

    def ended(self, pid: int, status: int) -> None:
        """Report the end of a process."""
        name = self.names.pop(pid, None)
        if name is None:
            self.strays[pid] = status  # an adopted orphan, or a process whose name is still in flight
            return
        self.report(event="exited", name=name, status=os.waitstatus_to_exitcode(status))
        if self.template is not None and self.template.pid == pid:
            waiting, self.template = self.template.end(), None
            for request in waiting:
                self.start(**request, how="exec")

    def reap(self) -> bool:
        """Reap ended processes; return whether any child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if os.WIFSTOPPED(status):
                self.stopped[pid] = time.monotonic()
                continue
            self.stopped.pop(pid, None)
            if not os.WIFCONTINUED(status):
                self.needed.discard(pid)
                self.ended(pid, status)

    def end_stopped(self) -> None:
        """Kill processes that others depend on and that stay stopped, so that they are replaced. The kernel handles stopped engines."""
        for pid, since in list(self.stopped.items()):
            if pid not in self.needed:
                del self.stopped[pid]
            elif time.monotonic() - since > PATIENCE:
                os.kill(pid, signal.SIGKILL)  # not reaped yet, so its pid was not reused

    def report(self, **event: Any) -> None:
        """Send an event to the kernel, if it still listens."""
        try:
            os.write(sys.stdout.fileno(), json.dumps(event).encode() + b"\n")
        except OSError:
            pass  # the kernel is gone, which the loop will notice

    def end_all(self) -> None:
        """Send SIGTERM to the children, then kill all remaining descendants."""
        begin = time.monotonic()
        for pid in list(self.names):
            os.kill(pid, signal.SIGTERM)
        while self.reap() and self.names and time.monotonic() < begin + GRACE:
            time.sleep(0.01)
        end_all_below(self.reap, begin + GIVE_UP)

    def remove_folders(self) -> None:
        """Remove the cluster's folders."""
        import shutil

        os.chdir("/")
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    kernels_line = int(sys.argv[2]) if sys.argv[2] else None
    if kernels_line is not None:
        os.set_inheritable(kernels_line, False)
    Guard(int(sys.argv[1]), sys.argv[3:], kernels_line).run()
