"""What happens to the sidebar when a run does not go from its beginning to its end: a reload, a restart, an error."""

import re

import nbformat
import psutil
import pytest
from playwright.sync_api import expect

from jupyter_dtrain.runs.store import RunStore
from tests.processes import find_processes

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

SETUP = """
%load_ext jupyter_dtrain
import time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=8)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
LOOP = """%%distribute --engines 2
for epoch in range({epochs}):
    for x, y in loader:
        time.sleep(0.05)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
LONG = LOOP.format(epochs=1000) + "        torch.renorm(x, 2, 0, 1.0)  # of which the sidebar says that each engine computes the whole\n"
SHORT = LOOP.format(epochs=2)
FAILING = (
    SHORT
    + """        if epoch == 1:
            raise ValueError(f"the loss is {loss.item():.0f} {'bananas'}")
"""
)
WIDGET = "application/vnd.jupyter.widget-view+json"
CELLS = {"setup": SETUP, "long": LONG, "short": SHORT, "failing": FAILING}
setup, long, short, failing = range(len(CELLS))


@pytest.fixture
def lab(open_lab):
    """A notebook with the cells above, set up, the sidebar open."""
    lab = open_lab(*CELLS.values())
    lab.open_sidebar()
    lab.resize_sidebar(300)
    lab.run(setup)
    lab.expect_cluster("stopped")
    return lab


def start_engines(lab, number):
    """Start engines with the sidebar's button."""
    lab.part("engine-count").fill(str(number))
    lab.part("start-cluster").click()
    lab.expect_cluster("running")
    expect(lab.part("rank")).to_have_count(number)


def engines(lab):
    """Return the processes of the engines that the sidebar shows."""
    titles = " ".join(rank.get_attribute("title") or "" for rank in lab.part("rank").all())
    return [psutil.Process(int(number)) for number in re.findall(r"process (\d+)", titles)]


@pytest.mark.long
def test_engines_started_in_the_sidebar_run_cells_also_after_one_that_fails(lab):
    start_engines(lab, 2)
    started = engines(lab)
    assert len(set(started)) == 2

    lab.start(failing)
    lab.finish(failing)
    expect(lab.error(failing)).to_have_count(1)
    shown = lab.output(failing)
    assert "ValueError: the loss is" in shown
    assert "line 10" in shown
    assert """raise ValueError(f"the loss""" in shown
    lab.expect_phase("failed")
    expect(lab.part("run-error")).to_have_text(re.compile(r"ValueError: the loss is \d+ bananas"))
    expect(lab.part("run-phase")).to_have_text("Failed")
    lab.expect_points(9)
    assert lab.cut_off() == []

    lab.run(short)
    lab.expect_phase("finished")
    expect(lab.part("run-error")).to_have_count(0)
    lab.expect_points(16)
    assert engines(lab) == started

    lab.part("stop-cluster").click()
    lab.expect_cluster("stopped")
    expect(lab.part("rank")).to_have_count(0)
    assert psutil.wait_procs(started, timeout=60)[1] == []


def test_a_reload_in_the_middle_of_a_run_loses_no_point(lab, server):
    errors = lab.watch_console()
    lab.start(long)
    lab.wait_for_points(20)
    before = lab.points()
    (kernel,) = find_processes(server.descendants(), "ipykernel_launcher")
    threads = kernel.num_threads()
    notice = lab.part("notices").get_by_text("renorm` (line 9) has no sharding rule")
    expect(notice).to_be_visible()

    lab.page.reload()
    lab.wait_until_ready()
    expect(lab.sidebar).to_be_visible()  # as it was
    lab.wait_for_points(before)
    expect(notice).to_be_visible()
    lab.wait_for_points(lab.points() + 10)  # and it goes on
    lab.page.reload()
    lab.wait_until_ready()
    lab.wait_for_points(before)
    # Each page has three subshells in the kernel, and those before it none any more.
    assert kernel.num_threads() <= threads + 2
    expect(lab.error(long)).to_have_count(0)
    lab.part("stop").click()
    lab.expect_phase("stopped")

    # Every step that the kernel recorded is in the curve.
    store = RunStore(lab.path.parent / "dtrain-runs")
    (run,) = store.list_runs()
    assert run.phase == "stopped"
    steps = store.points(run.run_id, "loss").step
    store.close()
    assert steps == list(range(1, len(steps) + 1))
    lab.expect_points(len(steps))
    assert errors == []


@pytest.mark.long
def test_a_kernel_that_is_killed_in_a_run_leaves_how_far_it_came_and_how_to_go_on(lab, server):
    lab.start(long)
    output = lab.cell(long).locator(".jp-OutputArea-output")
    view, summary = output.locator(".jp-dtrain-cell"), output.filter(has_text="If the kernel was lost")
    expect(view).to_be_visible()
    # From some training on there is a checkpoint, and the summary behind the view knows it.
    told = re.compile(r"at step [\d,]+ after .* on 2 engines.*%distribute resume (\S+) continue from step ([\d,]+)\.", re.DOTALL)
    expect(summary).to_have_text(told)
    expect(summary).to_be_hidden()
    (kernel,) = find_processes(server.descendants(), "ipykernel_launcher")
    kernel.kill()

    expect(view).to_have_count(0)
    expect(summary).to_be_visible()
    found = told.search(summary.inner_text())
    assert found
    lab.expect_phase("lost")
    expect(lab.part("run")).to_contain_text(f"To continue from step {found[2]}, run these lines:")
    expect(lab.part("run").locator("pre")).to_have_text(f"%load_ext jupyter_dtrain\n%distribute resume {found[1]}")
    assert lab.cut_off() == []
    lab.page.locator(".jp-Dialog").get_by_role("button", name="Ok").click()
    lab.save()
    outputs = nbformat.read(lab.path, as_version=4).cells[long].outputs
    assert not any(WIDGET in output.get("data", {}) for output in outputs)

    # It is what a new page with a new kernel shows, and what it says works.
    server.shut_down_kernels()
    lab.page.reload()
    lab.wait_until_ready()
    expect(summary).to_have_text(told)
    expect(output.filter(has_text="Error")).to_have_count(0)
    expect(lab.cell(long).get_by_role("img", name="Curves of loss")).to_be_visible()
    run_id, step = found[1], int(found[2].replace(",", ""))
    lab.write(setup, f"%load_ext jupyter_dtrain\n%distribute resume {run_id}")
    lab.start(setup)
    expect(lab.cell(setup).locator(".jp-OutputArea-output").filter(has_text=f"resuming from step {step}.")).to_have_count(1)
    lab.expect_phase("running")
    lab.part("stop").click()
    lab.finish(setup)


@pytest.mark.long
def test_a_view_that_was_saved_is_taken_out_of_a_notebook_that_is_opened_without_its_kernel(lab, server):
    lab.start(long)
    view = lab.cell(long).locator(".jp-dtrain-cell")
    expect(view).to_be_visible()
    lab.save()
    outputs = nbformat.read(lab.path, as_version=4).cells[long].outputs
    assert any(WIDGET in output.get("data", {}) for output in outputs)
    lab.page.goto("about:blank")
    server.shut_down_kernels()

    lab.page.go_back()
    lab.wait_until_ready()
    expect(lab.cell(long)).to_contain_text("If the kernel was lost, run the cell again")
    expect(lab.part("status")).to_have_attribute("data-status", "absent")
    lab.save()
    outputs = nbformat.read(lab.path, as_version=4).cells[long].outputs
    assert not any(WIDGET in output.get("data", {}) for output in outputs)


@pytest.mark.long
def test_a_restart_of_the_kernel_in_the_middle_of_a_run(lab):
    lab.start(long)
    lab.wait_for_points(20)
    running = engines(lab)
    steps = lab.points()

    lab.page.get_by_title("Restart the kernel", exact=True).click()
    lab.page.locator(".jp-Dialog").get_by_role("button", name="Confirm Kernel Restart").click()
    expect(lab.part("run")).to_have_attribute("data-phase", "lost")
    expect(lab.part("status")).to_have_attribute("data-status", "absent")
    assert lab.cut_off() == []
    assert lab.points() >= steps
    expect(lab.part("stop")).to_have_attribute("aria-disabled", "true")
    expect(lab.part("run-answer")).to_have_text("The run has ended")
    expect(lab.part("run")).to_contain_text("before the first checkpoint. Run the cell again.")
    expect(lab.part("rank")).to_have_count(0)
    expect(lab.sidebar.locator(".jp-dtrain-waiting")).to_have_count(0)
    assert psutil.wait_procs(running, timeout=60)[1] == []

    lab.run(setup)
    lab.expect_cluster("stopped")
    lab.expect_phase("lost")
    lab.run(short)
    lab.expect_phase("finished")
    lab.expect_points(16)
