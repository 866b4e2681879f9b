"""The two comms in a real kernel, as JupyterLab uses them: on kernel subshells, while a cell runs."""

import queue
import time
import uuid

import pytest
from jupyter_client.manager import KernelManager

from jupyter_dtrain.notebook.comm import MAX_LISTENERS
from jupyter_dtrain.protocol import COMMAND_TARGET, PROTOCOL_VERSION, RECORD_TARGET, TELEMETRY_TARGET

LIMIT = 30  # seconds that anything may take

SETUP = """
import threading
from jupyter_dtrain.notebook.comm import Telemetry
from jupyter_dtrain.protocol import *

class FakeSource:
    '''A run whose next step is taken on the command start_cluster.'''

    def __init__(self):
        self.lock = threading.Lock()
        self.gate = threading.Event()
        self.fresh, self.seen, self.commands, self.threads = [], [], [], set()

    def step(self, value=0.5):
        with self.lock:
            self.fresh.append((len(self.seen) + len(self.fresh) + 1, value))
        telemetry.notify()

    def points(self, steps):
        columns = dict(step=[step for step, _ in steps], time=[0.0] * len(steps), value=[value for _, value in steps])
        return [Points(run_id="run", name="loss", **columns)] if steps else []

    def snapshot(self):
        self.threads.add(threading.current_thread().name)
        with self.lock:
            return Snapshot(version=PROTOCOL_VERSION, cluster=ClusterUpdate(phase="running"), run=None, points=self.points(self.seen))

    def drain(self):
        self.threads.add(threading.current_thread().name)
        with self.lock:
            fresh, self.fresh = self.fresh, []
            self.seen += fresh
            return self.points(fresh)

    def command(self, command):
        self.commands.append(command)
        if command.name == "start_cluster":
            self.step()
        elif command.name == "stop_run":
            self.gate.set()
        elif command.name == "stop_cluster":
            raise RuntimeError("no such thing")
        return Reply(id=command.id, ok=True, message=f"{telemetry.num_listeners} listening")

source = FakeSource()
telemetry = Telemetry(source, interval=0.05)
telemetry.start()
"""


class Kernel:
    """A kernel, and everything that it has published."""

    def __init__(self, folder):
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(cwd=str(folder))
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=LIMIT)
        self.published = []
        self.subshells = []

    def stop(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def wait(self, condition, what):
        """Take in what the kernel publishes until `condition()` is true, and return its value."""
        deadline = time.monotonic() + LIMIT
        while not (value := condition()):
            try:
                self.published.append(self.client.get_iopub_msg(timeout=0.2))
            except queue.Empty:
                assert time.monotonic() < deadline, f"{what} did not come; published since the test began: {self.published}"
        return value

    def start(self, code):
        """Start a cell, wait until it runs and return its id."""
        cell = self.client.execute(code, store_history=False)
        self.wait(lambda: self.of(cell, "execute_input"), "the start of the cell")
        return cell

    def is_running(self, cell):
        return not any(message["content"]["execution_state"] == "idle" for message in self.of(cell, "status"))

    def finish(self, cell):
        """Wait for the end of a cell, and return what it printed."""
        self.wait(lambda: not self.is_running(cell), "the end of the cell")
        assert self.of(cell, "error") == []
        return "".join(message["content"]["text"] for message in self.of(cell, "stream"))

    def run(self, code):
        return self.finish(self.client.execute(code, store_history=False))

    def of(self, parent, kind):
        return [m for m in self.published if m["msg_type"] == kind and m["parent_header"].get("msg_id") == parent]

    def control(self, request, **content):
        """Send a request on the control channel and return the content of its reply."""
        message = self.client.session.msg(request, content)
        self.client.control_channel.send(message)
        reply = self.client.get_control_msg(timeout=LIMIT)
        assert reply["parent_header"]["msg_id"] == message["header"]["msg_id"]
        return reply["content"]

    def subshell(self):
        """Return the id of a new subshell."""
        self.subshells.append(self.control("create_subshell_request")["subshell_id"])
        return self.subshells[-1]


class Comm:
    """The browser's end of a comm, as JupyterLab opens it: each target on a subshell of its own."""

    def __init__(self, kernel, target, *, subshell=True):
        self.kernel = kernel
        self.id = uuid.uuid4().hex
        self.subshell_id = kernel.subshell() if subshell else None
        self.opening = self._send("comm_open", target_name=target, data={})

    def _send(self, kind, **content):
        message = self.kernel.client.session.msg(kind, {"comm_id": self.id, **content})
        if self.subshell_id:
            message["header"]["subshell_id"] = self.subshell_id
        self.kernel.client.shell_channel.send(message)
        return message["header"]["msg_id"]

    def send(self, data):
        return self._send("comm_msg", data=data)

    def close(self):
        return self._send("comm_close", data={})

    def raw(self, kind="comm_msg"):
        """Return the messages that this comm got."""
        return [m for m in self.kernel.published if m["msg_type"] == kind and m["content"]["comm_id"] == self.id]

    def telemetry(self):
        return [message for raw in self.raw() for message in raw["content"]["data"]["messages"]]

    def snapshot(self):
        """Wait for the snapshot, the first message, and return it."""
        message = self.kernel.wait(self.telemetry, "a snapshot")[0]
        assert (message["type"], message["version"], message["cluster"]["phase"]) == ("snapshot", PROTOCOL_VERSION, "running")
        return message

    def steps(self):
        """Return the steps of the loss curve that this comm has been given, snapshot included."""
        parts = [part for m in self.telemetry() for part in (m["points"] if m["type"] == "snapshot" else [m])]
        return [step for part in parts for step in part["step"]]

    def ask(self, data):
        """Send `data` as a command and wait for the reply."""
        before = len(self.raw())
        self.send(data)
        self.kernel.wait(lambda: len(self.raw()) > before, f"a reply to {data}")
        reply = self.raw()[-1]["content"]["data"]
        assert reply.pop("type") == "reply"
        return reply

    def command(self, name, **options):
        number = uuid.uuid4().hex
        reply = self.ask({"type": "command", "id": number, "name": name, **options})
        assert reply.pop("id") == number
        return {name: value for name, value in reply.items() if name in ("ok", "message") or value}  # with no data in most


@pytest.fixture(scope="module")
def shared_kernel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernel")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        kernel = Kernel(folder)
        yield kernel
        kernel.stop()


@pytest.fixture
def kernel(shared_kernel, request):
    kernel = shared_kernel
    kernel.run(f"import sys; sys.path.insert(0, {str(request.config.rootpath)!r})")
    kernel.run(SETUP)
    kernel.published.clear()
    yield kernel
    if any("gate.wait" in message["content"].get("code", "") for message in kernel.published):  # a failed test's cell may still be at it
        kernel.manager.interrupt_kernel()
    kernel.run("telemetry.close()")
    while kernel.subshells:
        kernel.control("delete_subshell_request", subshell_id=kernel.subshells.pop())


BUSY = "print(source.gate.wait(25))"


def test_a_front_end_gets_a_snapshot_and_then_each_step_once(kernel):
    kernel.run("source.step(); source.step()")
    first = Comm(kernel, TELEMETRY_TARGET)
    assert first.snapshot()["points"] == [
        {"run_id": "run", "name": "loss", "step": [1, 2], "time": [0.0, 0.0], "value": [0.5, 0.5], "thinned": False},
    ]
    kernel.run("for _ in range(50): source.step()")
    second = Comm(kernel, TELEMETRY_TARGET)
    second.snapshot()
    kernel.run("for _ in range(50): source.step()")
    for front_end in (first, second):
        kernel.wait(lambda: len(front_end.steps()) >= 102, "the last step")  # noqa: B023
        assert front_end.steps() == list(range(1, 103))
    assert kernel.run("print(source.threads)") == "{'dtrain-telemetry'}\n"


def test_while_a_cell_runs_commands_are_answered_and_telemetry_flows(kernel):
    telemetry, commands = Comm(kernel, TELEMETRY_TARGET), Comm(kernel, COMMAND_TARGET)
    telemetry.snapshot()
    kernel.run("source.step()")  # from the main thread, before and ...
    kernel.wait(telemetry.steps, "a step")
    cell = kernel.start(f"source.step()\n{BUSY}")  # ... in the cell: neither comm may be tied to it by this
    kernel.wait(lambda: len(telemetry.steps()) == 2, "a step during the cell")
    for number in range(3, 8):
        assert commands.command("start_cluster", num_engines=2) == {"ok": True, "message": "1 listening"}
        kernel.wait(lambda: len(telemetry.steps()) == number, "a step during the cell")  # noqa: B023
    assert kernel.is_running(cell)
    assert commands.command("stop_run") == {"ok": True, "message": "1 listening"}
    assert kernel.finish(cell) == "True\n"  # the gate was opened, by the command
    assert telemetry.steps() == list(range(1, 8))
    assert kernel.run("print([c.num_engines for c in source.commands])") == "[2, 2, 2, 2, 2, None]\n"


def test_a_page_that_is_reloaded_while_a_cell_runs_gets_everything_again_and_can_stop_it(kernel):
    Comm(kernel, TELEMETRY_TARGET).snapshot()
    cell = kernel.start(f"source.step(); source.step()\n{BUSY}")
    telemetry, commands = Comm(kernel, TELEMETRY_TARGET), Comm(kernel, COMMAND_TARGET)
    telemetry.snapshot()
    assert commands.command("start_cluster")["ok"]
    kernel.wait(lambda: telemetry.steps() == [1, 2, 3], "all steps")
    assert kernel.is_running(cell)
    commands.command("stop_run")
    assert kernel.finish(cell) == "True\n"


def test_a_front_end_that_closes_while_a_cell_runs_is_forgotten_at_once(kernel):
    going, staying, commands = Comm(kernel, TELEMETRY_TARGET), Comm(kernel, TELEMETRY_TARGET), Comm(kernel, COMMAND_TARGET)
    going.snapshot()
    staying.snapshot()
    cell = kernel.start(f"source.step()\n{BUSY}")
    kernel.wait(lambda: going.steps() == staying.steps() == [1], "the step")
    closing = going.close()
    kernel.wait(lambda: not kernel.is_running(closing), "the end of the closing")
    assert commands.command("start_cluster")["message"] == "1 listening"
    kernel.wait(lambda: staying.steps() == [1, 2], "the next step")
    assert kernel.is_running(cell)
    commands.command("stop_run")
    kernel.finish(cell)
    assert going.steps() == [1]


def test_telemetry_is_never_output_of_the_cell_that_runs(kernel):
    telemetry = Comm(kernel, TELEMETRY_TARGET)
    telemetry.snapshot()
    cell = kernel.start("source.step()\nimport time\nwhile source.fresh: time.sleep(0.01)\nprint('seen')")
    assert kernel.finish(cell) == "seen\n"
    kernel.wait(lambda: telemetry.steps() == [1], "the step")
    assert {raw["parent_header"]["msg_id"] for raw in telemetry.raw()} == {telemetry.opening}
    assert {m["msg_type"] for m in kernel.published if m["parent_header"].get("msg_id") == cell} == {"status", "execute_input", "stream"}


def test_without_subshells_it_works_while_no_cell_runs(kernel):
    telemetry, commands = (Comm(kernel, target, subshell=False) for target in (TELEMETRY_TARGET, COMMAND_TARGET))
    telemetry.snapshot()
    assert commands.command("start_cluster")["ok"]
    kernel.wait(lambda: telemetry.steps() == [1], "the step")


def test_a_telemetry_comm_that_was_opened_before_its_subshell_does_not_hold_up_commands(kernel):
    telemetry, commands = Comm(kernel, TELEMETRY_TARGET, subshell=False), Comm(kernel, COMMAND_TARGET)
    telemetry.snapshot()
    cell = kernel.start(BUSY)
    assert commands.command("start_cluster")["ok"]
    kernel.wait(lambda: telemetry.steps() == [1], "the step")
    commands.command("stop_run")
    assert kernel.finish(cell) == "True\n"


def test_a_long_answer_about_past_runs_keeps_no_stop_waiting(kernel):
    record, commands = Comm(kernel, RECORD_TARGET), Comm(kernel, COMMAND_TARGET)
    kernel.run("quick, source.command = source.command, lambda c: source.gate.wait(25) and quick(c) if c.name == 'list_runs' else quick(c)")
    record.send({"type": "command", "id": "7", "name": "list_runs"})
    assert commands.command("stop_run")["ok"]  # which opens the gate
    kernel.wait(record.raw, "the answer")
    assert record.raw()[0]["content"]["data"]["id"] == "7"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "unknown type None"),
        ({"type": "command", "id": "7"}, "unknown command None"),
        ({"type": "command", "name": "stop_run"}, "missing"),
        ({"type": "command", "id": "7", "name": "explode"}, "unknown command 'explode'"),
        ({"type": "command", "id": "7", "name": ["stop_run"]}, "unknown command"),
        ({"type": "command", "id": "7", "name": "stop_run", "force": True}, "unknown fields ['force']"),
        ({"type": "command", "id": 7, "name": "stop_run"}, "the id of a command"),
        ({"type": "command", "id": "7", "name": "start_cluster", "num_engines": "2"}, "whole number"),
        ({"type": "command", "id": "7", "name": "start_cluster", "num_engines": True}, "whole number"),
        ({"type": "command", "id": "7", "name": "get_curves", "run_id": 7}, "run_id is a text"),
        ({"type": "notice", "id": "7", "rank": 0, "text": ""}, "unknown fields"),
        ({"type": "notice", "rank": 0, "text": ""}, "not a command"),
        ([1, 2], "not list"),
        ("stop_run", "not str"),
        (None, "not NoneType"),
        ({"type": "command", "id": "7", "name": "stop_cluster"}, "RuntimeError: no such thing"),
    ],
)
def test_what_is_no_command_or_fails_is_answered_and_hurts_nothing(kernel, data, message):
    commands = Comm(kernel, COMMAND_TARGET)
    reply = commands.ask(data)
    assert not reply["ok"]
    assert message in reply["message"]
    assert reply["id"] == (data["id"] if isinstance(data, dict) and data.get("id") == "7" else "")
    assert commands.command("stop_run")["ok"]
    assert kernel.run("print([c.name for c in source.commands][-1])") == "stop_run\n"


def test_what_a_telemetry_comm_sends_is_ignored(kernel):
    telemetry = Comm(kernel, TELEMETRY_TARGET)
    telemetry.snapshot()
    telemetry.send({"type": "command", "id": "7", "name": "stop_run"})
    kernel.run("source.step()")
    kernel.wait(lambda: telemetry.steps() == [1], "the step")
    assert kernel.run("print(source.commands)") == "[]\n"


def test_numbers_that_are_not_finite_do_not_cost_the_batch(kernel):
    telemetry = Comm(kernel, TELEMETRY_TARGET)
    telemetry.snapshot()
    kernel.run("source.step(float('nan')); source.step(float('-inf')); source.step(0.25)")
    kernel.wait(lambda: len(telemetry.steps()) == 3, "the steps")
    assert [value for message in telemetry.telemetry()[1:] for value in message["value"]] == [None, None, 0.25]


def test_a_source_that_fails_is_asked_again(kernel):
    kernel.run("import jupyter_dtrain.notebook.comm as module\nretry, module.RETRY = module.RETRY, 0.1")
    kernel.run("good, source.drain = source.drain, lambda: 1 / 0")
    try:
        telemetry, commands = Comm(kernel, TELEMETRY_TARGET), Comm(kernel, COMMAND_TARGET)
        assert commands.command("start_cluster")["ok"]
    finally:
        kernel.run("source.drain, module.RETRY = good, retry")
    telemetry.snapshot()
    assert telemetry.steps() == [1]


def test_a_comm_that_cannot_be_written_to_is_dropped_and_the_others_go_on(kernel):
    broken, whole = Comm(kernel, TELEMETRY_TARGET), Comm(kernel, TELEMETRY_TARGET)
    broken.snapshot()
    whole.snapshot()
    kernel.run(f"def fail(data): raise OSError('gone')\nget_ipython().kernel.comm_manager.comms[{broken.id!r}].send = fail")
    kernel.run("source.step(); source.step()")
    kernel.wait(lambda: whole.steps() == [1, 2], "the steps")
    assert broken.steps() == []
    assert kernel.run("print(telemetry.num_listeners)") == "1\n"


def test_front_ends_that_never_said_goodbye_do_not_pile_up(kernel):
    comms = [Comm(kernel, TELEMETRY_TARGET, subshell=False) for _ in range(MAX_LISTENERS + 3)]
    comms[-1].snapshot()
    assert kernel.run("print(telemetry.num_listeners)") == f"{MAX_LISTENERS}\n"
    kernel.run("source.step()")
    kernel.wait(lambda: comms[-1].steps() == [1], "the step")
    assert [len(comm.raw("comm_close")) for comm in comms] == [1] * 3 + [0] * MAX_LISTENERS
    assert comms[3].steps() == [1]
    assert comms[0].steps() == []


def test_after_the_end_nothing_is_left(kernel):
    telemetry = Comm(kernel, TELEMETRY_TARGET)
    telemetry.snapshot()
    kernel.run("source.step(); telemetry.close()")
    kernel.wait(lambda: telemetry.raw("comm_close"), "the closing")
    assert telemetry.steps() == [1]  # the last words were sent first
    assert kernel.run("print([t.name for t in threading.enumerate() if 'dtrain' in t.name], telemetry.num_listeners)") == "[] 0\n"
    late = Comm(kernel, TELEMETRY_TARGET)
    kernel.wait(lambda: late.raw("comm_close"), "the refusal")
    assert kernel.run(f"print({telemetry.id!r} in get_ipython().kernel.comm_manager.comms)") == "False\n"


def test_what_nobody_listens_to_is_not_kept_for_later(kernel):
    kernel.run("for _ in range(10): source.step()")
    kernel.wait(lambda: kernel.run("print(len(source.fresh), len(source.seen))") == "0 10\n", "the steps taken in")
    assert Comm(kernel, TELEMETRY_TARGET).snapshot()["points"][0]["step"] == list(range(1, 11))


def test_a_second_load_takes_over_and_the_first_ones_end_leaves_it_alone(kernel):
    kernel.run(f"first = telemetry\n{SETUP}\nfirst.close()\nsource.step()")
    telemetry = Comm(kernel, TELEMETRY_TARGET)
    assert telemetry.snapshot()["points"][0]["step"] == [1]
