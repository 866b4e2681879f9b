"""A notebook for tests: a real kernel, cells typed one after another, and everything that they show."""

from __future__ import annotations

import base64
import contextlib
import pickle
import queue
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest
import zmq
from jupyter_client.manager import KernelManager
from jupyter_client.provisioning import local_provisioner

from jupyter_dtrain.notebook.display import METADATA, NOTICE
from tests.notebook.forked_kernels import FORKED, SAID, KernelTemplate

LIMIT = 120.0  # seconds; every wait ends at a condition, this is for the day it never comes
COLOURS = re.compile(r"\x1b\[[\d;]*m")


class Cell:
    """A cell that was run: what it has shown so far, and how it ended."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.messages: list[dict[str, Any]] = []
        self.reply: dict[str, Any] | None = None
        self.idle = False

    @property
    def running(self) -> bool:
        return not (self.idle and self.reply is not None)

    @property
    def ok(self) -> bool:
        return self.reply is not None and self.reply["status"] == "ok"

    def contents(self, kind: str) -> list[dict[str, Any]]:
        return [message["content"] for message in self.messages if message["msg_type"] == kind]

    def stream(self, name: str) -> str:
        return "".join(content["text"] for content in self.contents("stream") if content["name"] == name)

    @property
    def stdout(self) -> str:
        return self.stream("stdout")

    @property
    def stderr(self) -> str:
        """What is printed there, and the lines that this project says, which notebooks do not show in red."""
        said = [message["content"] for message in self.messages if message["msg_type"] in ("stream", "display_data")]
        errors = (content["text"] if content.get("name") == "stderr" else _notice(content) for content in said)
        return "".join(errors)

    @property
    def notices(self) -> list[str]:
        """The lines that this project says."""
        return [_notice(content).rstrip("\n") for content in self.contents("display_data") if content["metadata"] == NOTICE]

    @property
    def displays(self) -> list[dict[str, Any]]:
        """The data of each display by media type, without those of the cluster's progress and the view of the run."""
        starting = re.compile(r"starting|waiting for the controller|the engines? imports? torch|\d+ engines? ready|\d+ of \d+ engines up")
        shown = [c for c in self.contents("display_data") if c["metadata"] not in (METADATA, NOTICE)]
        return [content["data"] for content in shown if not starting.match(content["data"].get("text/plain", ""))]

    @property
    def run_views(self) -> list[dict[str, Any]]:
        """What the view of the run has shown, one in the place of the other: the data by media type."""
        kinds = ("display_data", "update_display_data")
        shown = [message["content"] for message in self.messages if message["msg_type"] in kinds]
        return [content["data"] for content in shown if content["metadata"] == METADATA]

    @property
    def result(self) -> str | None:
        """The text beside ``Out[...]``."""
        results = self.contents("execute_result")
        return results[0]["data"]["text/plain"] if results else None

    @property
    def error(self) -> tuple[str, str]:
        """Name and value of the error that was shown. There must be one, and one only."""
        (content,) = self.contents("error")
        return content["ename"], content["evalue"]

    @property
    def traceback(self) -> str:
        """The error as it was shown, without colours."""
        (content,) = self.contents("error")
        return COLOURS.sub("", "\n".join(content["traceback"]))

    def __repr__(self) -> str:
        shown = [(message["msg_type"], message["content"]) for message in self.messages if message["msg_type"] != "status"]
        return f"cell {self.code!r}, which showed {shown}"


def _notice(content: dict[str, Any]) -> str:
    return f"{content['data']['text/plain']}\n" if content.get("metadata") == NOTICE else ""


class Notebook:
    """A kernel of its own in `folder`. One that is `launched` has nothing imported; others are forked from a process that has PyTorch."""

    template = KernelTemplate()
    has_cells = True
    """Whether what it sends says in which cell of a notebook it stands."""

    def __init__(self, folder: Path, *, launched: bool = not FORKED, manager: KernelManager | None = None) -> None:
        self.folder = folder
        self.manager = manager or KernelManager(kernel_name="python3")
        forking = mock.patch.object(local_provisioner, "launch_kernel", self.template.launch)
        with contextlib.nullcontext() if launched or manager is not None else forking:
            self.manager.start_kernel(cwd=str(folder))
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=LIMIT)
        self._listen()

    def _listen(self) -> None:
        """Take in what comes over the client's channels."""
        self.poller = zmq.Poller()
        self.poller.register(self.client.iopub_channel.socket, zmq.POLLIN)
        self.poller.register(self.client.shell_channel.socket, zmq.POLLIN)
        self.poller.register(self.client.stdin_channel.socket, zmq.POLLIN)
        self.prompts: list[str] = []  # that nobody has answered yet
        self.cells: dict[str, Cell] = {}
        self.others: list[dict[str, Any]] = []  # messages that belong to no cell: comms
        self.subshells: dict[str, str] = {}  # by comm

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    @property
    def process(self) -> psutil.Process:
        return psutil.Process(self.value("__import__('os').getpid()"))

    # -- cells -------------------------------------------------------------------------------------------------------

    def start(self, code: str, *, stop_on_error: bool = True) -> Cell:
        """Run a cell, and do not wait for its end. The kernel drops what comes close behind a cell that fails, unless told not to."""
        cell = Cell(code)
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": True}
        # With the id of a cell, as JupyterLab sends it: `jupyter console` and nbclient send none.
        metadata = {"cellId": f"cell-{len(self.cells)}"} if self.has_cells else {}
        message = self.client.session.msg("execute_request", {**content, "stop_on_error": stop_on_error}, metadata=metadata)
        self.client.shell_channel.send(message)
        self.cells[message["header"]["msg_id"]] = cell
        return cell

    def finish(self, cell: Cell) -> Cell:
        """Wait for the end of `cell`, however it ends."""
        self.wait(lambda: not cell.running, "the end of the cell", cell)
        return cell

    def run(self, code: str) -> Cell:
        """Run a cell that must end without an error."""
        cell = self.finish(self.start(code))
        assert cell.ok, f"{cell.error}\n{cell.traceback}"
        return cell

    def fail(self, code: str) -> Cell:
        """Run a cell that must end with an error."""
        cell = self.finish(self.start(code))
        assert not cell.ok, f"no error from {cell}"
        return cell

    def type(self, cell: Cell, line: str, shows: str = "") -> str:
        """Type `line` where `cell` asks for one, and return what it has shown when it asks again and `shows` is there, without colours."""
        self.wait(lambda: self.prompts or not cell.running, "a prompt", cell)
        assert self.prompts, f"ended without a prompt: {cell}"
        del self.prompts[0]
        before = len(cell.stdout)
        self.client.input(line)

        def shown() -> str:
            return COLOURS.sub("", cell.stdout[before:])

        self.wait(lambda: not cell.running or (shows in shown() and self.prompts), f"{shows!r} after {line!r}", cell)
        assert shows in shown(), f"no {shows!r} after {line!r}: {cell}"
        return shown()

    def wait(self, condition: Callable[[], object], what: str, cell: Cell | None = None) -> None:
        """Take in what the kernel sends until `condition()` is true."""
        deadline = time.monotonic() + LIMIT
        while not condition():
            self._receive()
            assert self.manager.is_alive(), f"{what} did not come: the kernel has ended, {self._status()}"
            assert time.monotonic() < deadline, f"{what} did not come" + (f"; {cell}" if cell is not None else "")

    def end_running(self) -> None:
        """End the cells that a test which failed has left running: the next one would wait for them."""
        for cell in list(self.cells.values()):
            if cell.running and self.manager.is_alive():
                self.interrupt()
                self.finish(cell)
                self.prompts.clear()

    def wait_for_rest(self) -> None:
        """Wait until no engine is being started, in the place of another perhaps, or stopped: what is told of them is of others then."""
        self.wait(lambda: self.value(AT_REST), "the end of the start or stop of engines")

    @contextlib.contextmanager
    def changed(self, change: str, back: str) -> Iterator[None]:
        """Change something in the kernel, and change it `back` at the end of a test, also one that fails."""
        self.run(change)
        try:
            yield
        finally:
            self.end_running()
            self.run(back)

    def _status(self) -> str:
        """Say how the kernel's process has ended, and what it wrote at last."""
        process = getattr(self.manager.provisioner, "process", None)
        log = self.folder / SAID
        said = log.read_text(errors="replace")[-6000:] if log.exists() else ""
        return "by being shut down" if process is None else f"with status {process.poll()}\n{said}"

    def wait_for_stdout(self, cell: Cell, text: str) -> None:
        self.wait(lambda: text in cell.stdout or not cell.running, f"{text!r}", cell)
        assert text in cell.stdout, f"ended without {text!r}: {cell}"

    def _receive(self) -> None:
        self.poller.poll(100)  # milliseconds: what is awaited need not be a message
        with contextlib.suppress(queue.Empty):
            while True:
                message = self.client.get_iopub_msg(timeout=0)
                parent = message["parent_header"].get("msg_id")
                if parent in self.cells:
                    cell = self.cells[parent]
                    cell.messages.append(message)
                    cell.idle |= message["msg_type"] == "status" and message["content"]["execution_state"] == "idle"
                else:
                    self.others.append(message)
        with contextlib.suppress(queue.Empty):
            while True:
                self.prompts.append(self.client.get_stdin_msg(timeout=0)["content"]["prompt"])
        with contextlib.suppress(queue.Empty):
            while True:
                reply = self.client.get_shell_msg(timeout=0)
                parent = reply["parent_header"].get("msg_id")
                if parent in self.cells and reply["msg_type"] == "execute_reply":
                    self.cells[parent].reply = reply["content"]

    # -- looking into the notebook -----------------------------------------------------------------------------------

    def value(self, expression: str) -> Any:
        """Return the value of `expression` in the notebook."""
        wrapped = f"__import__('base64').b64encode(__import__('pickle').dumps(({expression}))).decode()"
        cell = Cell(expression)
        number = self.client.execute("", silent=True, user_expressions={"value": wrapped})
        self.cells[number] = cell
        # Until it is idle too: who takes it for running would interrupt a kernel that may end by that.
        self.wait(lambda: not cell.running, f"the value of {expression}", cell)
        assert cell.reply is not None
        found = cell.reply["user_expressions"]["value"]
        assert found["status"] == "ok", f"{expression}: {found}"
        return pickle.loads(base64.b64decode(found["data"]["text/plain"][1:-1]))

    def engines(self) -> list[int]:
        """Return the process numbers of the running engines, in rank order; others that start in their place are waited for."""
        self.wait_for_rest()
        found: list[int] = self.value(f"[engine.pid for engine in {SESSION}.telemetry.views.snapshot().cluster.engines]")
        return found

    def cluster_processes(self) -> list[psutil.Process]:
        """Return every process of the running cluster: the watchers and the engines, with all their children."""
        top = self.value(f"list({SESSION}.get().cluster.pids().values())")
        processes = {process for pid in top for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True))}
        return list(processes)

    # -- what else a front end does ----------------------------------------------------------------------------------

    def interrupt(self) -> None:
        """Press ■."""
        self.manager.interrupt_kernel()

    def open_comm(self, target: str) -> str:
        """Open a comm of the sidebar, as JupyterLab does: on a kernel subshell of its own. Return its id."""
        if version("ipykernel").startswith("6."):
            pytest.skip("a kernel of ipykernel 6 has no subshells: it is interrupted instead (tests/browser/test_installed.py)")
        request = self.client.session.msg("create_subshell_request", {})
        self.client.control_channel.send(request)
        comm = uuid.uuid4().hex
        self.subshells[comm] = self.client.get_control_msg(timeout=LIMIT)["content"]["subshell_id"]
        self._send_comm(comm, "comm_open", target_name=target, data={})
        return comm

    def close_comm(self, comm: str) -> None:
        self._send_comm(comm, "comm_close", data={})
        del self.subshells[comm]

    def heard(self, comm: str) -> list[dict[str, Any]]:
        """Return the data of each message that the comm has sent."""
        sent = [message["content"] for message in self.others if message["msg_type"] == "comm_msg"]
        return [content["data"] for content in sent if content["comm_id"] == comm]

    def command(self, comm: str, name: str, **options: object) -> dict[str, Any]:
        """Send a command over the comm, and return the reply, which comes while a cell runs as well."""
        number = uuid.uuid4().hex
        self._send_comm(comm, "comm_msg", data={"type": "command", "id": number, "name": name, **options})
        self.wait(lambda: any(data.get("id") == number for data in self.heard(comm)), f"the reply to {name}")
        return next(data for data in self.heard(comm) if data.get("id") == number)

    def _send_comm(self, comm: str, kind: str, **content: Any) -> None:
        message = self.client.session.msg(kind, {"comm_id": comm, **content})
        message["header"]["subshell_id"] = self.subshells[comm]
        self.client.shell_channel.send(message)


SESSION = "get_ipython().magics_manager.registry['DistributeMagics'].session"
AT_REST = (
    "(lambda magics: magics is None or magics.session.telemetry.views.snapshot().cluster.phase in ('running', 'stopped'))"
    "(get_ipython().magics_manager.registry.get('DistributeMagics'))"
)


def difference(left: Any, right: Any, path: str = "") -> str | None:
    """Return the first place where two values differ by more than 1e-9, or ``None`` where they are equal."""
    import torch

    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        if left.shape != right.shape or left.dtype != right.dtype:
            return f"{path}: {left.dtype} {tuple(left.shape)} and {right.dtype} {tuple(right.shape)}"
        apart = (left.detach().double() - right.detach().double()).abs().max().item() if left.numel() else 0.0
        return None if apart < 1e-9 else f"{path}: {apart} apart"
    if type(left) is not type(right):
        return f"{path}: {left!r} and {right!r}"
    if isinstance(left, Mapping):
        if list(left) != list(right):
            return f"{path}: keys {list(left)} and {list(right)}"
        return next((found for key in left if (found := difference(left[key], right[key], f"{path}[{key!r}]"))), None)
    if isinstance(left, Sequence) and not isinstance(left, str | bytes):
        if len(left) != len(right):
            return f"{path}: lengths {len(left)} and {len(right)}"
        pairs = enumerate(zip(left, right, strict=True))
        return next((found for index, (a, b) in pairs if (found := difference(a, b, f"{path}[{index}]"))), None)
    if isinstance(left, float):
        return None if abs(left - right) < 1e-9 else f"{path}: {left} and {right}"
    return None if left == right else f"{path}: {left!r} and {right!r}"
