"""The first run as a person does it: the example's cells, one after another, with the sidebar open."""

import math
import re
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import expect

from jupyter_dtrain.runs.store import RunStore

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.ipynb"
CHECK = """
steps = {int(optimizer.state[parameter]["step"]) for parameter in model.parameters()}
moved = max((parameter - before[name]).abs().max().item() for name, parameter in model.named_parameters())
print(f"{steps.pop()} steps, moved {moved:.3f}")
"""


def example_cells() -> dict[str, str]:
    """Return the example's code by the cells' ids, with enough epochs to watch, and a look at the weights."""
    cells = {cell.id: cell.source for cell in nbformat.read(EXAMPLE, as_version=4).cells if cell.cell_type == "code"}
    assert "epochs = 8\n" in cells["model"]
    cells["model"] = cells["model"].replace("epochs = 8\n", "epochs = 60\n")
    cells["model"] += "\nbefore = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}"
    del cells["picture"]
    return cells | {"check": CHECK}


@pytest.mark.long
def test_a_first_run_watched_and_stopped(open_lab, screenshot):
    cells = example_cells()
    lab = open_lab(*cells.values(), name=EXAMPLE.name)
    load, data, model, train, use, check = range(len(cells))
    lab.open_sidebar()
    lab.resize_sidebar(300)

    lab.run(load)
    lab.expect_cluster("running")
    ranks = lab.part("rank")
    expect(ranks).to_have_count(2)
    lab.run(data)
    lab.run(model)
    lab.start(train)
    lab.expect_phase("running")

    # The curve grows while the cell runs.
    lab.wait_for_points(10)
    first = lab.points()
    assert lab.is_running(train)
    lab.wait_for_points(first + 10)
    assert lab.is_running(train)
    for rank in range(2):
        bar = ranks.nth(rank).get_by_role("meter")
        expect(bar).to_have_attribute("aria-valuenow", re.compile(r"[1-9]\d*"))  # not 0
        assert bar.locator("div").bounding_box()["width"] > 0
        expect(ranks.nth(rank)).to_contain_text("GiB")
    expect(lab.part("progress")).to_have_text(re.compile(r"Epoch \d+ · batch \d+ of 23"))
    expect(lab.part("samples")).to_have_text(re.compile(r"[\d,.]+"))
    assert lab.number("samples") > 0
    assert lab.number("loss") > 0

    # The engines are in use, and a button that cannot act says so.
    stop_engines = lab.part("stop-cluster")
    expect(stop_engines).to_have_attribute("aria-disabled", "true")
    expect(stop_engines).to_have_attribute("title", "A run is using the engines: stop it first")

    lab.wait_for_points(150)
    assert lab.cut_off() == []
    screenshot(lab, "sidebar", cell=train)
    lab.part("notices").or_(lab.part("past-runs")).last.scroll_into_view_if_needed()
    screenshot(lab, "cluster", cell=train)
    assert lab.is_running(train)
    lab.part("stop").click()
    lab.expect_phase("stopped")
    lab.finish(train)
    expect(lab.error(train)).to_have_count(0)
    expect(lab.part("run-phase")).to_have_text("Stopped")
    expect(lab.part("stop")).to_have_attribute("aria-disabled", "true")
    expect(stop_engines).to_have_attribute("aria-disabled", "false")
    shown = re.search(r"Stopped after step (\d+); the notebook has the weights trained so far", lab.output(train))
    assert shown, lab.output(train)
    steps = int(shown[1])
    assert 150 <= steps < 60 * 23

    # The notebook holds that model, and the curve has a point for each of its steps.
    lab.expect_points(steps)
    store = RunStore(lab.path.parent / "dtrain-runs")
    losses = store.points(store.list_runs()[0].run_id, "loss").value
    store.close()
    assert losses[:8] == pytest.approx([math.log(10)] * 8, abs=0.1)  # what guessing costs: the mean over both engines
    found = re.search(r"(\d+) steps, moved ([\d.]+)", lab.run(check))
    assert found and int(found[1]) == steps and float(found[2]) > 0.01
    right = re.search(r"(\d+) of 360", lab.run(use))
    assert right and int(right[1]) > 180  # 36 by chance
