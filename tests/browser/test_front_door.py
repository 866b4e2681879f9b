"""The first minutes: from an empty sidebar to a run that is watched, paused and stopped in its cell."""

import re
import time

import pytest
from playwright.sync_api import expect

from tests.browser import cells
from tests.browser.server import LIMIT

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

BUSY_PART = 0.2
"""Of a core: what the page may take, drawn without a GPU, while a run goes on."""
SECONDS = 5


def part_of_a_core(lab, seconds):
    """Return how much of that time the page computes and paints: in time of the processor, which what runs beside it does not lengthen."""
    session = lab.page.context.new_cdp_session(lab.page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def taken():
        return next(one["value"] for one in session.send("Performance.getMetrics")["metrics"] if one["name"] == "TaskDuration")

    before = taken()
    lab.page.wait_for_timeout(1000 * seconds)  # what is measured is a time
    part = (taken() - before) / seconds
    session.detach()
    return part


def states(server):
    """Return the state of each kernel, as the server tells hubs and what shuts down idle kernels."""
    return [kernel["execution_state"] for kernel in server.request("GET", "kernels")]


def wait_for_states(server, expected):
    """Wait until the server tells these states: what a kernel replies comes to the page another way than what it is doing."""
    deadline = time.monotonic() + LIMIT
    while states(server) != expected:
        assert time.monotonic() < deadline, f"the kernels are {states(server)}"
        time.sleep(0.05)


def test_an_empty_sidebar_leads_to_a_run_that_is_stopped_in_its_cell(open_lab, server):
    lab = open_lab("1 + 1")
    lab.open_sidebar()
    lab.resize_sidebar(300)
    assert lab.cut_off() == []
    lab.part("load").click()
    lab.expect_cluster("stopped")
    lab.part("example").click()
    loaded, setup, train = 1, 2, 3
    expect(lab.cell(loaded)).to_contain_text("%load_ext jupyter_dtrain")
    expect(lab.cell(train)).to_contain_text("%%distribute --engines 2")
    assert lab.cut_off() == []
    assert lab.faults() == []

    # The button of a cell's toolbar takes the line off and puts it back.
    lab.cell(train).locator(".jp-InputArea-editor .cm-content").click()
    button = lab.cell(train).locator('.jp-cell-toolbar [data-command="jupyter-dtrain:distribute-cell"]')
    expect(button).to_be_visible()
    button.click()
    expect(lab.cell(train)).not_to_contain_text("%%distribute")
    button.click()
    expect(lab.cell(train)).to_contain_text("%%distribute")

    lab.run(setup)
    lab.write(train, cells.TRAIN.format(name="first", steps=20_000).replace("(8, 4)", "(8, 16)").replace("\n", "\nimport time\n", 1))
    lab.start(train)
    view = lab.cell(train).locator(".jp-dtrain-cell")
    expect(view).to_have_attribute("data-phase", "running")
    lab.wait_for_points(40)
    assert lab.faults_in_every_theme(view) == []
    points = lab.points()
    part = part_of_a_core(lab, SECONDS)
    assert lab.points() > points
    print(f"the page takes {part:.0%} of a core")
    assert part < BUSY_PART

    view.get_by_test_id("jp-dtrain-cell-pause").click()
    expect(view).to_have_attribute("data-phase", "paused")
    lab.expect_phase("paused")
    wait_for_states(server, ["busy"])  # though it has answered meanwhile
    view.get_by_test_id("jp-dtrain-cell-resume").click()
    expect(view).to_have_attribute("data-phase", "running")
    view.get_by_test_id("jp-dtrain-cell-stop").click()
    lab.finish(train)
    expect(lab.error(train)).to_have_count(0)
    expect(lab.cell(train)).to_contain_text(re.compile("Stopped after step"))
    wait_for_states(server, ["idle"])
