"""A detached run outlives its kernel, which is restarted from JupyterLab's menu: the next one shows all of it, and its buttons act."""

import re

import pytest
from playwright.sync_api import expect

from jupyter_dtrain.runs.detached_index import going
from tests.browser import cells

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

TRAIN = cells.TRAIN.format(name="detached", steps=6000).replace("--engines 2", "--engines 2 --device cpu --detach")
AFTER = "len(model.weight), loss.item() >= 0"
setup, train, after, attach = range(4)


@pytest.mark.long
def test_a_run_goes_on_while_its_kernel_restarts_and_is_followed_and_stopped_by_the_next(open_lab):
    lab = open_lab(cells.SETUP, TRAIN, AFTER)
    lab.open_sidebar()
    lab.resize_sidebar(300)
    lab.run(setup)
    lab.start(train)
    lab.wait_for_points(20)
    before = lab.points()

    lab.page.get_by_role("menuitem", name="Kernel", exact=True).click()
    lab.page.get_by_role("menuitem", name=re.compile("^Restart Kernel…")).click()
    lab.page.locator(".jp-Dialog").get_by_role("button", name="Confirm Kernel Restart").click()
    expect(lab.part("status")).to_have_attribute("data-status", "absent")
    (run_id,) = going(lab.path.parent / "dtrain-runs")
    lab.expect_phase("alone")
    expect(lab.part("run-phase")).to_have_text("Running without a kernel")
    expect(lab.page.get_by_test_id("jp-dtrain-status-item")).to_contain_text("Running without a kernel")
    assert lab.cut_off() == []

    # Followed: the curve since the beginning, and what it has come to meanwhile.
    lab.wait_until_ready()
    lab.part("attach").click()
    expect(lab.cell(attach)).to_contain_text(f"%distribute attach {run_id}")
    lab.expect_phase("running")
    lab.wait_for_points(before + 20)
    expect(lab.part("rank")).to_have_count(2)
    assert lab.is_running(attach)
    assert lab.cut_off() == []
    assert lab.faults() == []

    # Its buttons act.
    lab.part("pause").click()
    lab.expect_phase("paused")
    step = lab.number("step")
    lab.expect_points(int(step))  # none is missing, from the first one on
    lab.part("resume").click()
    lab.expect_phase("running")
    lab.wait_for_points(int(step) + 10)
    lab.part("checkpoint-now").click()
    expect(lab.part("run-answer")).to_have_text(re.compile(r"A checkpoint will be written|The checkpoint of step \d+ is on disk"))
    lab.wait_for_points(lab.points() + 20)
    lab.part("stop").click()
    lab.expect_phase("stopped")
    lab.finish(attach)
    expect(lab.error(attach)).to_have_count(0)
    expect(lab.cell(attach)).to_contain_text("the notebook has the weights trained so far")
    assert list((lab.path.parent / "dtrain-runs").glob("*/checkpoints/*/manifest.json"))
    assert "(1, True)" in lab.run(after)
