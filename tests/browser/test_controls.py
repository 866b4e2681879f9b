"""The run's buttons while its cell runs: paused and gone on, kept on disk, stopped."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser import cells

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

TRAIN = cells.TRAIN.format(name="controlled", steps=3000)
setup, train = range(2)


def test_a_run_is_paused_goes_on_and_is_stopped_while_its_cell_runs(open_lab):
    lab = open_lab(cells.SETUP, TRAIN)
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
    expect(answer).to_have_text(re.compile(r"Paused after step \d+\."))
    expect(lab.part("run-phase")).to_have_text("Paused")
    step = lab.number("step")
    assert answer.inner_text() == f"Paused after step {step:,.0f}."
    assert lab.is_running(train)
    expect(lab.part("pause")).to_have_count(0)
    assert lab.cut_off() == []
    assert lab.faults_in_every_theme() == []

    # Going on.
    lab.part("resume").click()
    lab.expect_phase("running")
    lab.wait_for_points(int(step) + 10)

    # How far it is: the loop says how long it is, and the steps how fast they are.
    expect(lab.part("progress")).to_have_text(re.compile(r"\d+% · ETA \d:\d\d"))
    bar = lab.part("progress").get_by_role("progressbar", name="Progress of the run")
    expect(bar).to_have_attribute("aria-valuetext", re.compile(r"\d+%, ETA \d:\d\d"))
    assert lab.cut_off() == []

    # An engine is restarted, and the run goes on.
    first, second = (rank.get_attribute("title") for rank in lab.part("rank").all())
    lab.part("restart-engine").nth(1).click()
    expect(lab.part("cluster")).to_contain_text("The engine of rank 1 is restarting.")
    expect(lab.cell(train)).to_contain_text("Restarting rank 1: resuming from")
    expect(lab.part("rank").nth(1)).not_to_have_attribute("title", second)
    expect(lab.part("rank").nth(0)).to_have_attribute("title", first)
    lab.wait_for_points(lab.points() + 20)
    assert lab.is_running(train)
    assert lab.cut_off() == []
    assert lab.faults() == []

    # Kept on disk: the run's folder has a checkpoint.
    lab.part("checkpoint-now").click()
    expect(answer).to_have_text(re.compile(r"A checkpoint will be written|The checkpoint of step \d+ is on disk"))
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
    lab.part("restart-engine").nth(0).click()
    expect(lab.part("rank").nth(0)).not_to_have_attribute("title", first)
    lab.expect_cluster("running")
    for button in ("pause", "checkpoint-now", "stop"):
        expect(lab.part(button)).to_have_attribute("aria-disabled", "true")
        expect(lab.part(button)).to_have_attribute("title", "The run has ended")
