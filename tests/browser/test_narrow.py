"""The sidebar as narrow as JupyterLab opens it, and what it says of losses that are no numbers."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.lab import SIDEBAR

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

NARROW = 250  # pixels: what JupyterLab gives a sidebar at first
SETUP = """
%load_ext jupyter_dtrain
import time, torch
import jupyter_dtrain
from torch import nn
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
"""
# The accuracy is there before the loss, whose last values are no numbers.
TRAIN = """%%distribute --engines 2 --replicate
jupyter_dtrain.log(accuracy=0.1)
for step in range(2000):
    time.sleep(0.02)
    loss = model(torch.ones(8, 4)).square().mean() * (float("nan") if step > 40 else 1.0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    jupyter_dtrain.log(val_precision=1 / (1 + step), **{"val_mean_average_precision_at_intersection_over_union": 0.5})
"""
setup, train = range(2)


@pytest.mark.long
def test_a_narrow_sidebar_has_room_for_all_and_says_that_the_loss_is_no_number(open_lab):
    lab = open_lab(SETUP, TRAIN)
    lab.open_sidebar()
    lab.resize_sidebar(NARROW)
    lab.run(setup)
    lab.start(train)
    # While the engines start, nothing says that the cell that is running should be run.
    lab.expect_cluster("starting")
    expect(lab.part("run")).to_contain_text("The engines are starting.")
    expect(lab.part("run").locator("pre")).to_have_count(0)

    lab.wait_for_points(60)
    expect(lab.part("loss")).to_have_text("nan")
    expect(lab.page.get_by_test_id("jp-dtrain-status-item")).to_have_text(re.compile(r"Running · step \d+ · loss nan"))
    charts = lab.sidebar.locator("figure:visible")
    expect(charts.first.locator(".jp-dtrain-chart-value")).to_have_text(re.compile(r"not finite · step \d+"))
    expect(charts.first.get_by_role("img")).to_have_attribute("aria-label", re.compile("Loss: Loss not finite, step"))

    # The loss comes first, whichever was logged before it, and a curve that is alone has its whole name.
    names = charts.locator(".jp-dtrain-chart-name")
    expect(names).to_have_text(["Loss", "accuracy", "val_precision", "val_mean_average_precision_at_intersection_over_union"])

    # A scroll bar, which this browser hides, takes its width: charts out of sight are not drawn anew for it.
    lab.page.add_style_tag(content=f"#{SIDEBAR} {{ border-right: 15px solid grey; }}")
    expect(lab.sidebar).to_have_css("border-right-width", "15px")
    assert lab.sidebar.evaluate("node => node.scrollWidth <= node.clientWidth")
    buttons = [lab.part(name).bounding_box() for name in ("pause", "checkpoint-now", "stop")]
    assert len({box["y"] for box in buttons}) == 1
    assert lab.cut_off() == []
    ranks = lab.part("rank").all()
    assert all(rank.locator(".jp-dtrain-rank-place").evaluate("node => node.scrollWidth <= node.clientWidth") for rank in ranks)
    assert lab.faults() == []

    lab.part("stop").click()
    lab.finish(train)
    expect(lab.cell(train).get_by_role("row", name=re.compile(r"^loss \S+ not finite"))).to_be_visible()
    expect(lab.part("checkpoints")).to_contain_text("unless pinned or --checkpoint-every is set.")
    # One name, wherever the run is shown.
    expect(lab.part("run").locator(".jp-dtrain-run-name")).to_have_text("run-1")
    expect(lab.cell(train)).to_contain_text("run-1: stopped")
    lab.page.get_by_role("button", name="Past runs").click()
    expect(lab.part("past-run").get_by_role("button", name="run-1", exact=True)).to_be_visible()
    assert lab.cut_off() == []
    assert lab.sidebar.evaluate("node => node.scrollWidth <= node.clientWidth")
