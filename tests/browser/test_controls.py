"""The run's buttons while its cell runs: paused and gone on, kept on disk, stopped."""

import re

import pytest
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

SETUP = """
%load_ext jupyter_dtrain
import time, torch
from torch import nn
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
TRAIN = """%%distribute --engines 2 --name controlled
for step in range(3000):
    time.sleep(0.02)
    loss = model(torch.ones(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
setup, train = range(2)


def test_a_run_is_paused_goes_on_and_is_stopped_while_its_cell_runs(open_lab):
    lab = open_lab(SETUP, TRAIN)
    lab.open_sidebar()
    lab.resize_sidebar(300)
    lab.run(setup)
    lab.start(train)
    lab.wait_for_points(20)
    assert lab.cut_off() == []
    answer = lab.part("run-answer")

    # Paused: the ranks wait, and the cell still runs.
    lab.part("pause").click()
    lab.expect_phase("paused")
    expect(answer).to_have_text(re.compile(r"The engines wait after step \d+\."))
    expect(lab.part("run-phase")).to_have_text("Paused")
    step = lab.number("step")
    assert answer.inner_text() == f"The engines wait after step {step:,.0f}."
    assert lab.is_running(train)
    expect(lab.part("pause")).to_have_count(0)
    assert lab.cut_off() == []
    assert lab.faults() == []

    # Going on.
    lab.part("resume").click()
    lab.expect_phase("running")
    lab.wait_for_points(int(step) + 10)

    # Kept on disk: the run's folder has a checkpoint.
    lab.part("checkpoint-now").click()
    expect(answer).to_contain_text("A checkpoint is written")
    folder = lab.path.parent / "dtrain-runs"
    lab.wait_for_points(lab.points() + 20)

    # From the palette too, and stopped in a pause.
    lab.execute("jupyter-dtrain:pause-run")
    lab.expect_phase("paused")
    assert list(folder.glob("*/checkpoints/*/manifest.json"))
    lab.part("stop").click()
    lab.expect_phase("stopped")
    lab.finish(train)
    expect(lab.error(train)).to_have_count(0)
    expect(answer).to_have_text("The run has ended")
    for button in ("pause", "checkpoint-now", "stop"):
        expect(lab.part(button)).to_have_attribute("aria-disabled", "true")
        expect(lab.part(button)).to_have_attribute("title", "The run has ended")
