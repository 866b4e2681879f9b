"""The cluster of a notebook: it starts when it is needed, stays for later cells, and goes with the kernel."""

from __future__ import annotations

import re

import psutil
import pytest

from jupyter_dtrain.protocol import COMMAND_TARGET
from tests.conftest import one_of
from tests.notebook.conftest import IMPORTS
from tests.notebook.kernel import SESSION, difference

SETUP = """
import os, pathlib, time
import torch.distributed as dist
torch.manual_seed(1)
inputs, targets = torch.randn(12, 6), torch.randn(12, 1)
loader = DataLoader(TensorDataset(inputs, targets), batch_size=4, shuffle=True)
model = nn.Linear(6, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
"""
TRAIN = """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    print("epoch", epoch)
"""
ENDLESS = TRAIN.replace("range(2)", "range(100_000)")
STATE = "(model.state_dict(), optimizer.state_dict())"


@pytest.fixture(scope="module")
def own_notebook(module_notebook):
    """A notebook whose engines may be stopped and killed."""
    notebook = module_notebook()
    notebook.run(IMPORTS)
    return notebook


def gone(process):
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def assert_all_gone(notebook, processes):
    notebook.wait(lambda: all(gone(process) for process in processes), f"the end of {processes}")


# -- on the command line of the notebook -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "usage", "explained"),
    [
        ("%%distribute --help", "usage: %%distribute [-h] [--engines N]", "run the cell on every engine"),
        ("%%distribute --help\nprint('not run')", "usage: %%distribute [-h] [--engines N]", "engines to use"),
        (
            "%distribute --help",
            "usage: %distribute [-h] ACTION ...",
            "stop the engines",
        ),
        (
            "%distribute",
            "usage: %distribute [-h] ACTION ...",
            "show the engines and the last run",
        ),
        ("%distribute start --help", "usage: %distribute start [-h] [--engines N]", "auto, cpu or cuda"),
        ("%distribute status --help", "usage: %distribute status [-h]", "-h, --help"),
        ("%distribute stop --help", "usage: %distribute stop [-h]", "-h, --help"),
    ],
)
def test_help_explains_and_does_nothing(notebook, line, usage, explained):
    engines = notebook.engines()
    cell = notebook.run(line)
    assert cell.stdout.startswith(usage)
    assert explained in cell.stdout.lower() or explained in cell.stdout
    assert "not run" not in cell.stdout
    assert notebook.engines() == engines


def test_start_status_and_stop(own_notebook):
    notebook = own_notebook
    notebook.run("%distribute stop")
    nothing = "No engines are running.\nThe first %%distribute cell starts them, or `%distribute start -n 2` does it now.\n"
    assert notebook.run("%distribute status").stdout == nothing
    assert notebook.run("%distribute stop").stdout == "No engines are running.\n"

    started = notebook.run("%distribute start -n 1").stdout
    (pid,) = notebook.engines()
    assert started.splitlines()[0] == "1 engine running"
    assert f"process {pid})" in started.splitlines()[1]
    assert notebook.run("%distribute status").stdout == started
    assert notebook.run("%distribute start").stdout == started  # there is one already
    assert notebook.run("%%distribute\nos_pid = __import__('os').getpid()\nos_pid").result == str(pid)

    few = notebook.cluster_processes()
    assert notebook.run("%distribute start --engines 2").stdout.startswith("2 engines running\n")  # one was too few
    assert_all_gone(notebook, few)
    processes = notebook.cluster_processes()
    assert len(notebook.engines()) == 2
    assert notebook.run("%distribute stop").stdout == "The engines have stopped.\n"
    assert_all_gone(notebook, processes)
    assert notebook.run("%distribute status").stdout.startswith("No engines are running.\n")


def test_the_first_cell_starts_the_cluster_and_later_ones_share_it(own_notebook):
    notebook = own_notebook
    notebook.run("%distribute stop")
    first = notebook.run(
        "%%distribute --engines 2\nimport os\npids = [None] * 2\nimport torch.distributed as dist\n"
        "dist.all_gather_object(pids, os.getpid())"
    )
    assert "starting" in first.contents("display_data")[0]["data"]["text/plain"]
    assert notebook.engines() == notebook.value("pids")
    second = notebook.run("%%distribute\nos.getpid(), dist.get_world_size()")
    assert second.result == f"({notebook.value('pids')[0]}, 2)"
    assert second.contents("display_data") == []  # nothing had to start


@pytest.mark.parametrize("folder", one_of(2, ["blob_dir", "private_dir"]))
def test_a_cluster_whose_folders_the_system_has_removed_is_replaced(own_notebook, folder):
    notebook = own_notebook
    notebook.run("%distribute start -n 1 --device cpu\n1 + 1")
    processes = notebook.cluster_processes()
    notebook.run(f"import shutil\nshutil.rmtree({SESSION}.get().cluster.{folder})")
    cell = notebook.run("%%distribute --engines 1 --device cpu\nnumber = sum(range(4))\nnumber")
    assert (cell.result, cell.stderr, notebook.value("number")) == ("6", "", 6)
    assert_all_gone(notebook, processes)


@pytest.mark.long
def test_the_sidebar_starts_and_stops_the_cluster(own_notebook):
    notebook = own_notebook
    notebook.run("%distribute stop")
    commands = notebook.open_comm(COMMAND_TARGET)
    assert notebook.command(commands, "start_cluster", num_engines=1)["message"] == "The engines are starting."
    notebook.wait(lambda: "1 engine running" in notebook.run("%distribute status").stdout, "the engine")
    processes = notebook.cluster_processes()
    assert notebook.command(commands, "stop_cluster")["message"] == "The engines are stopping."
    assert_all_gone(notebook, processes)
    notebook.close_comm(commands)


@pytest.mark.parametrize("in_background", one_of(2, [True, False]))
def test_an_interrupt_while_the_cluster_starts(own_notebook, in_background):
    notebook = own_notebook
    if not in_background:  # which the first cell's engines do
        notebook.run("%%distribute --engines 1\n1")
    notebook.run("%distribute stop")
    kernel = notebook.process
    cell = notebook.start("%%distribute --engines 1\n1")

    def said(cell):
        return [content["data"]["text/plain"] for kind in ("display_data", "update_display_data") for content in cell.contents(kind)]

    notebook.wait(lambda: "starting 1 engine" in said(cell), "the start", cell)
    notebook.interrupt()
    notebook.finish(cell)
    assert cell.error[0] == "KeyboardInterrupt"
    assert re.fullmatch(r"KeyboardInterrupt: Interrupted while .*\. The cell has not begun: run it again\.", cell.traceback)
    assert notebook.run("%distribute status").stdout.splitlines()[0] == "No engines are running."
    assert kernel.children() == []
    cell = notebook.run("%%distribute --engines 1\n1 + 1")
    assert cell.result == "2" and "1 engine ready" in said(cell)


# -- when something dies -----------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("rank", one_of(2, [1, 0]))
def test_an_engine_that_dies_whatever_is_done_ends_the_cell(own_notebook, rank):
    """One that is killed from outside is replaced: tests/faults."""
    notebook = own_notebook
    notebook.run(SETUP)
    notebook.run("%distribute start -n 2")
    processes = notebook.cluster_processes()
    cell = notebook.fail(
        f"%%distribute --engines 2{TRAIN}    import os, torch.distributed as dist\n"
        f"    if dist.get_rank() == {rank}:\n        os.kill(os.getpid(), 9)\n    dist.barrier()\n"
    )
    assert cell.error[0] == "ClusterError"
    assert re.search(rf"The engine of rank {rank} \(process \d+\) was lost: its process has ended.", cell.traceback)
    assert "The next %%distribute cell starts a new cluster." in cell.traceback
    held = rf"( \(rank {rank} held \d\S* [GM]iB of the \d\S* GiB that it may have when last measured\))?"  # if it lived for as long
    assert re.search(rf"killed by the OOM killer{held}\. A smaller batch_size ", cell.traceback)
    assert "jupyter_dtrain" not in cell.traceback
    assert "for the third time at the same point: giving up" in cell.stderr
    assert_all_gone(notebook, processes)
    if rank == 0:
        assert "The notebook's objects are as they were before the cell." in cell.traceback
        assert notebook.value("len(optimizer.state)") == 0
    else:
        assert cell.stdout.count("epoch 0\n") == 1, "what was shown is not shown again"
        assert "The notebook holds what rank 0 had at its last finished step (" in cell.traceback
        assert notebook.value("len(optimizer.state)") > 0

    notebook.run(SETUP)
    notebook.run(TRAIN)
    plain = notebook.value(STATE)
    notebook.run(SETUP)
    assert notebook.run(f"%%distribute --engines 2{TRAIN}").stdout == "epoch 0\nepoch 1\n"
    assert difference(notebook.value(STATE), plain) is None


@pytest.mark.parametrize(
    ("end", "why"),
    [
        pytest.param("os.abort()", "It was ended by SIGABRT: compiled code", marks=pytest.mark.long),
        pytest.param("os._exit(3)", "It ended by itself, with status 3: ", marks=pytest.mark.long),
    ],
)
def test_an_engine_that_ends_itself_says_how(own_notebook, end, why):
    notebook = own_notebook
    notebook.run(SETUP)
    cell = notebook.fail(f"%%distribute --engines 2{TRAIN}    import os\n    {end}\n")
    assert why in cell.traceback
    assert "OOM killer" not in cell.traceback
    assert "[Engine" not in cell.traceback, "what engines write as a matter of routine"


CRASH = """
import ctypes, os, sys
def crash():
    ctypes.string_at(0)
print("loading", file=sys.stderr)
if os.environ["RANK"] == "1":
    crash()
"""


def test_where_compiled_code_has_crashed_is_told_by_the_lines_of_the_cell(own_notebook):
    cell = own_notebook.fail(f"%%distribute --engines 2 --strategy none{CRASH}")
    _, written = cell.traceback.split("Its last output:\n")
    lines = [line.strip() for line in written.splitlines()]
    assert lines[:2] == ["loading", "Fatal Python error: Segmentation fault"]
    assert lines[-2:] == ["Cell, line 4 in crash", "Cell, line 7 in <module>"]


FILES = """%%distribute --engines 2
import faulthandler, os, sys
faulthandler.enable()
os.fstat(sys.stdout.fileno())
(sys.stdout.encoding, sys.stdout.isatty())
"""


@pytest.mark.long
def test_the_files_of_output_are_there_on_all_ranks(own_notebook):
    own_notebook.run("%distribute stop\nimport os\nos.environ.pop('PYTEST_CURRENT_TEST', None)")  # where it is, ipykernel has none
    assert own_notebook.run(FILES).result == "('UTF-8', False)"


@pytest.mark.long
def test_a_killed_kernel_leaves_no_process(new_notebook):
    notebook = new_notebook()
    notebook.run(IMPORTS + SETUP)
    notebook.run("%distribute start -n 2")
    kernel, processes = notebook.process, notebook.cluster_processes()
    assert len(processes) >= 4  # those that watch, and two engines
    cell = notebook.start(f"%%distribute{ENDLESS}")
    notebook.wait_for_stdout(cell, "epoch 1\n")
    kernel.kill()
    _, alive = psutil.wait_procs(processes, timeout=60)
    assert [process for process in alive if not gone(process)] == []
