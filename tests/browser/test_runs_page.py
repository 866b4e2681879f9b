"""The page of runs in the main area: found, sorted, selected, drawn, compared, and one of them looked at."""

import csv
import math
import re
import time

import pytest
from playwright.sync_api import expect

from jupyter_dtrain.protocol import Value
from jupyter_dtrain.runs.curves import Curve
from jupyter_dtrain.runs.store import RunStore

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

CELL = """model = nn.Linear(4, 1)
fit(model, torch.optim.{optimizer}(model.parameters(), lr={lr}))
"""
RUNS = {"sgd": ("SGD", 0.02), "adam": ("Adam", 0.02), "adam-fast": ("Adam", 0.2)}
STEPS = list(range(1, 193))


def record_runs(folder):
    """Record what three runs of a cell leave: no test here is about how they come there."""
    store = RunStore(folder)
    for number, (name, (optimizer, rate)) in enumerate(RUNS.items()):
        run_id = store.create_run(name, CELL.format(optimizer=optimizer, lr=rate), 2, {"best": "val_loss:min"}, {"python": "3.11"})
        values: dict[str, Value] = {
            "optimizer": optimizer,
            "optimizer.lr": rate,
            "optimizer.betas": "(0.9, 0.999)",
            "batch_size": 16,
            "model": "Linear",
        }
        store.set_hyperparameters(run_id, values)
        started = time.time()
        losses = [(number + 1) * math.exp(-step / 60) + 0.1 * math.sin(step) ** 2 for step in STEPS]
        ends = STEPS[15::16]
        curves = {
            "loss": (STEPS, losses),
            "val_loss": (ends, [losses[step - 1] * 1.1 for step in ends]),
            "accuracy": (ends, [1 / (1 + losses[step - 1]) for step in ends]),
            "device/0/utilization": (ends, [50.0 + step % 7 for step in ends]),
            "device/1/utilization": (ends, [60.0 + step % 5 for step in ends]),
        }
        store.add_points(
            run_id,
            [
                (curve, Curve(step=[*steps], time=[started + step / 10 for step in steps], value=numbers))
                for curve, (steps, numbers) in curves.items()
            ],
        )
        store.finish_run(run_id, "finished")
    store.close()


def names(page):
    return page.get_by_test_id("jp-dtrain-runs-row").get_by_role("rowheader").all_inner_texts()


def column(page, name):
    """Return the texts of a column of the table."""
    heads = page.locator(".jp-dtrain-runs-table thead th").all_inner_texts()
    place = next(index for index, head in enumerate(heads) if head.strip(" ▾▴") == name)
    return [row.locator("th, td").nth(place).inner_text() for row in page.get_by_test_id("jp-dtrain-runs-row").all()]


def test_runs_in_a_tab_of_the_main_area(open_lab, screenshot):
    lab = open_lab("%load_ext jupyter_dtrain")
    record_runs(lab.path.parent / "dtrain-runs")
    lab.open_sidebar()
    lab.run(0)
    lab.page.get_by_role("button", name="Past runs").click()
    lab.part("past-runs").get_by_role("button", name="Open in a tab").click()
    lab.close_sidebar()
    page = lab.page.get_by_test_id("jp-dtrain-page")
    table = page.get_by_test_id("jp-dtrain-runs-table")
    expect(page.get_by_test_id("jp-dtrain-runs-row")).to_have_count(3)
    assert names(page) == ["adam-fast", "adam", "sgd"]
    assert column(page, "optimizer") == ["Adam", "Adam", "SGD"]
    assert column(page, "optimizer.lr") == ["0.2", "0.02", "0.02"]
    assert column(page, "State") == ["Finished"] * 3

    # Sorted by a column, in both directions; filtered by a hyperparameter.
    head = table.get_by_role("button", name="optimizer.lr")
    head.click()
    assert names(page) == ["adam", "sgd", "adam-fast"]
    head.press("Enter")
    expect(table.get_by_role("columnheader", name="optimizer.lr")).to_have_attribute("aria-sort", "descending")
    assert names(page) == ["adam-fast", "adam", "sgd"]
    best = [float(value) for value in column(page, "Best")]
    table.get_by_role("button", name="Best", exact=True).click()
    assert [float(value) for value in column(page, "Best")] == sorted(best)
    search = page.get_by_test_id("jp-dtrain-page-filter")
    search.fill("optimizer=adam")
    expect(page.get_by_test_id("jp-dtrain-runs-row")).to_have_count(2)
    search.fill("")

    # The newest is drawn; two more are selected, and all charts have a line of each.
    loss = page.locator('figure[data-series="loss"]')
    expect(loss).to_have_attribute("data-points", "192")
    page.get_by_label("Select all listed runs").check()
    expect(page.get_by_role("status")).to_have_text("3 of 3 runs, 3 selected")
    expect(loss.locator(".jp-dtrain-legend li")).to_have_count(6)  # loss and val_loss
    accuracy = page.locator('figure[data-series="accuracy"]')
    expect(accuracy.locator(".jp-dtrain-legend li")).to_have_count(3)

    # The pointer in one chart reads all.
    box = loss.get_by_role("img").bounding_box()
    lab.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(loss.locator(".jp-dtrain-chart-value")).not_to_have_text("step 192")
    place = loss.locator(".jp-dtrain-chart-value").inner_text()
    assert re.fullmatch(r"step \d+", place)
    expect(accuracy.locator(".jp-dtrain-chart-value")).to_have_text(place)
    screenshot(lab, "page-charts")

    # Compared: what differs, and the code of two.
    page.get_by_role("tab", name="Charts").focus()
    lab.page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Compare")).to_be_focused()
    compared = page.get_by_test_id("jp-dtrain-compared")
    expect(compared.get_by_role("rowheader", name="optimizer", exact=True).first).to_be_visible()
    expect(compared.get_by_role("rowheader", name="optimizer.lr", exact=True).first).to_be_visible()
    expect(compared.get_by_role("rowheader", name="batch_size")).to_have_count(0)
    diff = compared.get_by_test_id("jp-dtrain-diff")
    expect(diff.locator("[data-change=removed]")).to_contain_text("torch.optim.SGD")
    expect(diff.locator("[data-change=added]")).to_contain_text("torch.optim.Adam")
    compared.get_by_label("Compare to").select_option("adam-fast")
    expect(diff.locator("[data-change=added]")).to_contain_text("lr=0.2")
    screenshot(lab, "page-compare")

    # One run in full.
    table.get_by_role("button", name="adam", exact=True).click()
    opened = page.get_by_test_id("jp-dtrain-opened")
    expect(opened.get_by_role("heading", name="adam", exact=True)).to_be_visible()
    expect(opened).to_contain_text("optimizer.betas")
    expect(opened).to_contain_text("(0.9, 0.999)")
    expect(opened.locator('figure[data-series="utilization"] .jp-dtrain-legend li')).to_have_count(2)
    expect(opened.locator("pre").last).to_contain_text("torch.optim.Adam")

    # Marked with a tag, by which it is found.
    opened.get_by_label("Add a tag").fill("paper")
    opened.get_by_label("Add a tag").press("Enter")
    expect(opened.get_by_test_id("jp-dtrain-opened-tags")).to_contain_text("paper")
    assert sorted(column(page, "Tags")) == ["paper", "–", "–"]
    screenshot(lab, "page-run")
    opened.get_by_role("button", name="paper", exact=True).click()
    expect(search).to_have_value("tag=paper")
    expect(page.get_by_test_id("jp-dtrain-runs-row")).to_have_count(1)
    opened.get_by_role("button", name="Remove the tag paper").click()
    expect(page.get_by_test_id("jp-dtrain-runs-row")).to_have_count(0)
    search.fill("")

    # One file to share.
    with lab.page.expect_download() as shared:
        opened.get_by_role("button", name="HTML").click()
    text = shared.value.path().read_text(encoding="utf-8")
    assert "<h1>adam</h1>" in text
    assert "torch.optim.Adam" in text

    # A table for a spreadsheet.
    with lab.page.expect_download() as saved:
        lab.page.locator("#jp-dtrain-runs-page > .jp-Toolbar").get_by_text("CSV").click()
    rows = list(csv.DictReader(saved.value.path().read_text(encoding="utf-8").splitlines()))
    assert {(row["Name"], row["optimizer"], row["batch_size"]) for row in rows} == {
        ("sgd", "SGD", "16"),
        ("adam", "Adam", "16"),
        ("adam-fast", "Adam", "16"),
    }

    # By the keyboard alone: from the filter to the table's head, a run taken out of the selection, another opened.
    search.focus()
    for _ in range(3):
        lab.page.keyboard.press("Tab")
    expect(page.get_by_label("Select all listed runs")).to_be_focused()
    lab.page.keyboard.press("Tab")
    expect(table.get_by_role("button", name="Name", exact=True)).to_be_focused()
    lab.page.keyboard.press("Enter")
    assert names(page) == ["adam", "adam-fast", "sgd"]
    tick = page.get_by_label("Select sgd")
    tick.focus()
    lab.page.keyboard.press("Space")
    expect(tick).not_to_be_checked()
    lab.page.keyboard.press("Tab")
    lab.page.keyboard.press("Enter")
    expect(opened.get_by_role("heading", name="sgd", exact=True)).to_be_visible()
    tick.press("Space")
    table.get_by_role("button", name="Started").click()
    table.get_by_role("button", name="Started").click()
    table.get_by_role("button", name="adam", exact=True).click()

    # For those who do not see it or use no mouse, in every theme, and in narrow and wide windows.
    for theme in ("JupyterLab Dark", "JupyterLab Dark High Contrast", "JupyterLab Light"):
        lab.change_theme(theme)
        for tab in ("Charts", "Compare", "Run"):
            page.get_by_role("tab", name=tab).click()
            assert lab.faults(page) == []
    lab.execute("application:toggle-left-area")
    for width in (1920, 900, 600):
        lab.page.set_viewport_size({"width": width, "height": 840})
        for tab in ("Charts", "Compare", "Run"):
            page.get_by_role("tab", name=tab).click()
            view = page.get_by_role("tabpanel")
            expect(view).to_be_visible()
            assert view.evaluate("node => node.scrollWidth <= node.clientWidth"), (width, tab)
            assert page.evaluate("node => node.scrollWidth <= node.clientWidth"), (width, tab)
        # The rows reach the page's edge, and further where they do not fit.
        assert table.evaluate("node => node.clientWidth >= node.parentElement.clientWidth"), width
    screenshot(lab, "page-narrow")

    # Closed, and opened again by its card.
    lab.page.set_viewport_size({"width": 1280, "height": 840})
    lab.page.get_by_role("tab", name="Runs").locator(".lm-TabBar-tabCloseIcon").click()
    expect(page).to_have_count(0)
    lab.execute("launcher:create")
    lab.page.locator(".jp-Launcher").get_by_role("button", name="Training Runs").click()
    expect(page.get_by_test_id("jp-dtrain-runs-row")).to_have_count(3)
    assert names(page) == ["adam-fast", "adam", "sgd"]
