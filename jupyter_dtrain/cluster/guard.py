"""The process that starts a cluster's processes and ends them: nobody outlives the notebook kernel.

Controller and engines are children of this guard, and the guard watches the kernel. A kernel that is killed cannot
clean up after itself, so everything that has to happen then happens here: end every process below, the ones that ran
away from their parents included, then remove the cluster's folders. On Linux the guard adopts orphans
(``PR_SET_CHILD_SUBREAPER``), so "below" has no holes, and its own children die with it should someone kill the guard: all but the
template, which watches the kernel as well and becomes the next guard (``promotion.py``).

It runs as a script of the standard library, ``process_tree.py`` and ``template_line.py`` alone, without ``site``: it starts in some 20 ms,
stays small, and cannot fail over an environment that is being changed under it. ``guarded_processes.py`` is the kernel's side. Both talk in
lines of JSON:

- in: ``{"do": "start", "name", "argv", "env", "cwd", "log", "how"}``, ``{"do": "signal", "name", "signal"}``, ``{"do": "stop"}``;
  the end of the input means stop too. `how` is ``"exec"``, ``"template"`` for the process that others are forked from
  (``forkserver.py``), or ``"fork"`` for one of those, which is executed all the same where there is no template.
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

GRACE = 0.5  # seconds between asking processes to leave and killing them
PATIENCE = 1.0  # seconds that a process may be stopped, as by a SIGSTOP, which the others need
GIVE_UP = 10.0  # seconds after which a process that cannot be killed (stuck in a driver) is left alone
POLL = 0.25  # seconds between looks at the parent's pid where the system has no pidfd


class Guard:
    """Starts processes, reports their ends, and ends all of them when the kernel `parent` is gone.

    Parameters
    ----------
    parent : int
        Pid of the kernel, whose child this process is.
    folders : list of str
        Locked while the guard runs, which tells other clusters that they are in use, and removed at the end.
    line : int, optional
        File descriptor for the template: its line to the kernel.
    kernel : int, optional
        A pidfd of the kernel, for a guard that is not its child.
    """

    def __init__(self, parent: int, folders: list[str], line: int | None = None, kernel: int | None = None) -> None:
        self.parent, self.is_child = parent, kernel is None
        self.folders, self.line, self.kernel = folders, line, kernel
        self.names: dict[int, str] = {}
        self.needed: set[int] = set()  # pids of what engines and kernel wait for: the controller and the template
        self.stopped: dict[int, float] = {}  # when by pid
        self.stopping = False
        self.prctl = prctl()
        self.input = b""
        self.template: Template | None = None
        self.due: dict[str, list[int]] = {}  # signals by name for what is being forked
        self.strays: dict[int, int] = {}  # status by pid of what has ended and was nobody's; the template may yet say whose

    def run(self) -> None:
        """Serve until told to stop or until the kernel is gone, then clean up."""
        for folder in self.folders:
            fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)  # held until this process ends
        self.prctl(PR_SET_CHILD_SUBREAPER, 1)
        awake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if hasattr(os, "pipe2") else os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):  # handlers and not SIG_IGN, which the engines would inherit
            signal.signal(number, lambda _number, _frame: None)
        signal.signal(signal.SIGTERM, self.stop)
        try:
            watched = [sys.stdin.fileno(), awake]
            try:
                self.kernel = self.kernel or os.pidfd_open(self.parent)
                watched.append(self.kernel)
            except (AttributeError, OSError):
                pass  # not Linux, or a sandbox that does not know it: the loop below looks at the parent's pid instead
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
        """Do what the kernel asks for."""
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
        """Start one process in a session of its own, its output going to the file `log`."""
        if how == "fork" and self.template is not None:
            self.template.ask(name=name, argv=argv, env=env, cwd=cwd, log=log)
            return
        template = Template(env, self.kernel, self.line) if how == "template" else None
        guard = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                # In the guard's session a template that is stopped when the guard dies is ended by the system (an orphaned group's SIGHUP).
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
                if os.getppid() == guard:  # it may have died before its death could be a signal
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
        """Send a signal to the process `name`, to one that is being forked when it is there; nothing happens if it is gone."""
        pids = [pid for pid, known in self.names.items() if known == name]
        for pid in pids:
            os.kill(pid, signal)  # unreaped, so the pid is still its own
        if not pids and self.template is not None and name in self.template.waiting:
            self.due.setdefault(name, []).append(signal)

    def known(self, name: str, pid: int) -> None:
        """Report that the process `name` is there, and its end if that came first."""
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
            self.strays[pid] = status  # an orphan that was adopted, or one whose name is still on its way
            return
        self.report(event="exited", name=name, status=os.waitstatus_to_exitcode(status))
        if self.template is not None and self.template.pid == pid:
            waiting, self.template = self.template.end(), None
            for request in waiting:
                self.start(**request, how="exec")

    def reap(self) -> bool:
        """Collect processes that have ended; return whether any child is left."""
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
        """Kill what others wait for and does not go on: its end is told, and another does its work. Engines are the kernel's matter."""
        for pid, since in list(self.stopped.items()):
            if pid not in self.needed:
                del self.stopped[pid]
            elif time.monotonic() - since > PATIENCE:
                os.kill(pid, signal.SIGKILL)  # unreaped, so the pid is still its own

    def report(self, **event: Any) -> None:
        """Tell the kernel, if it still listens."""
        try:
            os.write(sys.stdout.fileno(), json.dumps(event).encode() + b"\n")
        except OSError:
            pass  # it is gone; the loop is about to notice

    def end_all(self) -> None:
        """Ask the children to leave, then kill whatever is left below, until nothing is."""
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
