"""The curves as a person reads them: closer, smoother, over epochs or time, as a file."""

import csv
import math
import re

import pytest
from playwright.sync_api import expect

from jupyter_dtrain.runs.store import RunStore

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

SETUP = """
%load_ext jupyter_dtrain
import math, time, torch
import jupyter_dtrain as dtrain
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=8)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
TRAIN = """%%distribute --engines 2 --name noisy
for epoch in range(10):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.01)
    dtrain.log(val_loss=loss.item(), accuracy=1 - math.exp(-epoch))
"""
STEPS, EPOCHS = 80, 10


def figure(lab, name):
    return lab.sidebar.locator(f'figure[data-series="{name}"]')


def told(lab, name):
    """Return the text beside the name of a chart."""
    return figure(lab, name).locator(".jp-dtrain-chart-value")


def ink(lab, name):
    """Return how many pixels of a chart's canvas are drawn on."""
    return (
        figure(lab, name)
        .locator("canvas")
        .evaluate(
            "node => node.getContext('2d').getImageData(0, 0, node.width, node.height).data.filter((v, i) => i % 4 === 3 && v > 0).length"
        )
    )


def pointer_at(lab, name, x):
    """Move the pointer to `x`, a part of the width of a chart's plot."""
    # In one go: a chart whose axis has just been changed draws itself anew.
    box = figure(lab, name).evaluate(
        """node => {
            node.scrollIntoView({ block: 'nearest' });
            const { x, y, width, height } = node.querySelector('.u-over').getBoundingClientRect();
            return { x, y, width, height };
        }"""
    )
    lab.page.mouse.move(box["x"] + x * box["width"], box["y"] + box["height"] / 2)
    return box


def test_curves_are_read_zoomed_smoothed_and_saved(open_lab, screenshot):
    lab = open_lab(SETUP, TRAIN)
    lab.open_sidebar()
    lab.resize_sidebar(300)
    lab.run(0)
    lab.run(1)
    lab.expect_phase("finished")
    lab.expect_points(STEPS)

    # The validation loss is in the chart of the training loss, what is logged besides has its own.
    expect(figure(lab, "loss")).to_have_count(1)
    expect(figure(lab, "val_loss")).to_have_count(0)
    expect(figure(lab, "loss").locator(".jp-dtrain-legend li")).to_have_count(2)
    expect(figure(lab, "accuracy")).to_have_attribute("data-points", str(EPOCHS))
    assert ink(lab, "loss") > 500
    assert lab.cut_off() == []

    # The value at a step, in all charts at once.
    pointer_at(lab, "loss", 0.5)
    step = re.compile(r"step (39|40|41)$")
    expect(told(lab, "loss")).to_have_text(step)
    expect(told(lab, "accuracy")).to_have_text(re.compile(r"^0\.\d+ · step (39|40|41)$"))
    expect(figure(lab, "loss").get_by_role("img")).to_have_attribute("aria-label", re.compile(r"Loss: Loss [\d.]+, val_loss [\d.]+, step"))

    # Zoom with the mouse, move with Shift, and back.
    box = pointer_at(lab, "loss", 0.25)
    lab.page.mouse.down()
    lab.page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 20, steps=5)
    lab.page.mouse.up()
    reset = lab.part("reset-zoom")
    expect(reset).to_be_visible()
    pointer_at(lab, "accuracy", 0.999)
    expect(told(lab, "accuracy")).to_have_text(re.compile(r"step (39|40|41)$"))
    lab.page.keyboard.down("Shift")
    box = pointer_at(lab, "loss", 0.9)
    lab.page.mouse.down()
    lab.page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 20, steps=5)
    lab.page.mouse.up()
    lab.page.keyboard.up("Shift")
    pointer_at(lab, "loss", 0.999)
    expect(told(lab, "loss")).to_have_text(re.compile(r"step (49|50|51)$"))
    reset.click()
    expect(reset).to_be_hidden()

    # The same with the keyboard.
    figure(lab, "loss").get_by_role("img").focus()
    lab.page.keyboard.press("+")
    expect(reset).to_be_visible()
    lab.page.keyboard.press("ArrowRight")
    lab.page.keyboard.press("0")
    expect(reset).to_be_hidden()

    # Over epochs, and over time.
    lab.part("x-axis").select_option("epoch")
    pointer_at(lab, "loss", 0.5)
    expect(told(lab, "loss")).to_have_text(re.compile(r"epoch (4\.[89]|5\.[01])\d$"))
    lab.part("x-axis").select_option("time")
    pointer_at(lab, "loss", 0.999)
    expect(told(lab, "loss")).to_have_text(re.compile(r"after 0:\d\d$"))
    lab.part("x-axis").select_option("step")

    # Smoothed, with the values as they are behind; on a logarithmic scale.
    lab.page.mouse.move(0, 0)
    before = figure(lab, "loss").locator(".jp-dtrain-legend-value").first.inner_text()
    lab.part("smoothing").fill("0.9")
    expect(figure(lab, "loss").locator(".jp-dtrain-legend-value").first).not_to_have_text(before)
    lab.part("log-scale").check()
    assert ink(lab, "loss") > 500
    assert lab.cut_off() == []
    screenshot(lab, "curves", cell=1)

    # As a table, with all points as they were recorded, and as a picture.
    with lab.page.expect_download() as download:
        figure(lab, "loss").get_by_role("button", name="CSV: save all points of Loss").click()
    assert download.value.suggested_filename == "noisy-loss.csv"
    with download.value.path().open(newline="") as file:
        rows = list(csv.DictReader(file))
    store = RunStore(lab.path.parent / "dtrain-runs")
    (run,) = store.list_runs()
    for name in ("loss", "val_loss"):
        stored = store.points(run.run_id, name)
        assert [int(row["step"]) for row in rows if row["curve"] == name] == stored.step
        assert [float(row["value"]) for row in rows if row["curve"] == name] == stored.value
    store.close()
    assert {row["run"] for row in rows} == {"noisy"}
    assert len(rows) == STEPS + EPOCHS
    assert not any(math.isnan(float(row["value"])) for row in rows)

    with lab.page.expect_download() as download:
        figure(lab, "loss").get_by_role("button", name="PNG: save the chart of Loss").click()
    assert download.value.suggested_filename == "noisy-loss.png"
    assert download.value.path().read_bytes().startswith(b"\x89PNG")
