"""Trials side by side as a person sees them: a table in the cell, all curves and engines in the sidebar, and one button to stop them."""

import pytest
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

SETUP = """
%load_ext jupyter_dtrain
import time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=8)
lr = 0.1
"""
TRAIN = """%%distribute --engines 2 --vary lr=0.1,0.01,0.001 --best final
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
for epoch in range(EPOCHS):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.01)
final = loss.item()
"""
setup, train, long = range(3)


@pytest.mark.long
def test_trials_are_seen_side_by_side_and_stopped(open_lab, screenshot):
    lab = open_lab(SETUP, TRAIN.replace("EPOCHS", "8"), TRAIN.replace("EPOCHS", "10**6"))
    lab.open_sidebar()
    lab.resize_sidebar(340)
    lab.run(setup)

    lab.start(train)
    expect(lab.part("rank")).to_have_count(2, timeout=180_000)  # two clusters start, on a machine that may have other things to do
    lab.finish(train)
    rows = lab.cell(train).locator("table tbody tr")
    expect(rows).to_have_count(3)
    told = [row.locator("td").all_inner_texts() for row in rows.all()]
    assert [cells[1:4] for cells in told] == [[lr, "finished", "64"] for lr in ("0.1", "0.01", "0.001")]
    (best,) = [cells[1] for cells in told if cells[0] == "★"]
    expect(lab.cell(train)).to_contain_text(f"Best trial: lr={best}. Its model and variables are now in the notebook.")

    # The best is the one that is shown, and the others' curves are beside it.
    expect(lab.part("run")).to_contain_text(f"lr={best}")
    for lr in ("0.1", "0.01", "0.001"):
        expect(lab.part("curves").get_by_role("listitem", name=f"lr={lr}", exact=True)).to_have_count(2)  # of the loss, of the metric
    expect(lab.part("trials")).to_contain_text("Trials: 3 of 3")
    assert lab.faults() == []
    screenshot(lab, "trials", cell=train)

    lab.start(long)
    expect(lab.part("run-phase")).to_have_text("Running", timeout=180_000)
    expect(rows.last).to_contain_text("finished")
    expect(lab.cell(long).locator("table tbody tr").nth(1)).to_contain_text("%")
    expect(lab.part("trials")).to_contain_text("Trials: 0 of 3")
    expect(lab.part("pause")).to_have_attribute("title", "Trials can’t be paused. Stop ends all of them.")
    expect(lab.part("pause")).to_have_attribute("aria-disabled", "true")

    # On the page all trials are one row, which unfolds; one of them is stopped, and the next begins.
    lab.page.get_by_role("button", name="Past runs").click()
    lab.part("past-runs").get_by_role("button", name="Open in a tab").click()
    page = lab.page.get_by_test_id("jp-dtrain-page")
    sweeps = page.get_by_test_id("jp-dtrain-sweep-row")
    expect(sweeps).to_have_count(2)
    expect(page.get_by_test_id("jp-dtrain-runs-row")).to_have_count(0)
    expect(sweeps.first).to_contain_text("0 of 3")
    expect(sweeps.last).to_contain_text("3 of 3")
    sweeps.first.get_by_role("button", name="Sweep: lr").click()
    trials = page.get_by_test_id("jp-dtrain-runs-row")
    expect(trials).to_have_count(2)
    assert lab.faults(page) == []
    page.get_by_role("button", name="Stop lr=0.1").click()
    expect(sweeps.first).to_contain_text("1 of 3")
    expect(trials).to_have_count(3)
    expect(trials.filter(has_text="Stopped")).to_have_count(1)
    screenshot(lab, "page-sweep")
    lab.execute("application:close")
    lab.page.get_by_role("button", name="Past runs").click()

    lab.part("stop").click()
    lab.finish(long)
    stopped = lab.cell(long).locator("table tbody tr")
    for number, phase in enumerate(("stopped", "stopped", "stopped")):
        expect(stopped.nth(number)).to_contain_text(phase)
    expect(lab.cell(long)).to_contain_text("no trial has a finite value of 'final'")
    assert lab.faults() == []


SEARCH = """%%distribute --engines 2 --vary lr=log:1e-4..0.3 --search asha:5,seed=2 --best final
torch.manual_seed(1)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
for epoch in range(9):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.01)
    with torch.no_grad():
        final = nn.functional.mse_loss(model(x), y).item()
"""


@pytest.mark.long
def test_trials_that_a_search_stops_early_are_seen_as_such(open_lab, screenshot):
    lab = open_lab(SETUP, SEARCH)
    lab.open_sidebar()
    lab.resize_sidebar(340)
    lab.run(0)
    lab.start(1)
    expect(lab.part("rank")).to_have_count(2, timeout=180_000)
    lab.finish(1)
    told = [row.locator("td").all_inner_texts() for row in lab.cell(1).locator("table tbody tr").all()]
    pruned = {cells[1]: int(cells[2].removeprefix("pruned at step ")) for cells in told if cells[2].startswith("pruned")}
    assert pruned and len(told) == 5
    assert all(cells[0] != "★" for cells in told if cells[1] in pruned)
    expect(lab.cell(1)).to_contain_text(f"{len(pruned)} of 5 trials were stopped early.")
    expect(lab.part("trials")).to_contain_text(f"Trials: 5 of 5 ({len(pruned)} pruned)")
    for lr in pruned:
        expect(lab.part("curves").get_by_role("listitem", name=f"lr={lr}", exact=True)).to_have_count(2)
    lab.page.get_by_role("button", name="Past runs").click()
    lab.part("past-runs").get_by_role("button", name="Open in a tab").click()
    page = lab.page.get_by_test_id("jp-dtrain-page")
    sweep = page.get_by_test_id("jp-dtrain-sweep-row")
    expect(sweep).to_contain_text(f"5 of 5 ({len(pruned)} pruned)")
    sweep.get_by_role("button", name="Sweep: lr").click()
    expect(page.get_by_test_id("jp-dtrain-runs-row").filter(has_text="Pruned")).to_have_count(len(pruned))
    assert lab.faults_in_every_theme() == []
    assert lab.faults_in_every_theme(page) == []
    screenshot(lab, "page-search")


FIFTY = """%%distribute --engines 2 --name fifty --vary "lr=[n / 100 for n in range(50)]"
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
while True:
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.01)
"""
COLLECT_NOTICES = """
() => {
  window.dtrainNotices = [];
  new MutationObserver(records => {
    for (const node of records.flatMap(record => [...record.addedNodes])) {
      const notice = node instanceof Element && (node.closest('.Toastify__toast') ?? node.querySelector('.Toastify__toast'));
      if (notice && !window.dtrainNotices.includes(notice)) {
        window.dtrainNotices.push(notice);
      }
    }
  }).observe(document.body, { childList: true, subtree: true });
}
"""


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_sweep_of_fifty_is_stopped_trial_by_trial_and_told_of_once(open_lab):
    lab = open_lab(SETUP, FIFTY)
    lab.open_sidebar()
    lab.run(0)
    lab.page.evaluate(COLLECT_NOTICES)
    lab.start(1)
    expect(lab.part("run-phase")).to_have_text("Running", timeout=180_000)
    lab.page.get_by_role("button", name="Past runs").click()
    lab.part("past-runs").get_by_role("button", name="Open in a tab").click()
    page = lab.page.get_by_test_id("jp-dtrain-page")
    sweep = page.get_by_test_id("jp-dtrain-sweep-row")
    sweep.get_by_role("button", name="Sweep: fifty").click()
    trials = page.get_by_test_id("jp-dtrain-runs-row")
    for stopped in range(50):
        expect(sweep).to_contain_text(f"{stopped} of 50")
        going = trials.filter(has_text="Running").last  # the one that began first
        going.get_by_role("button", name="Stop", exact=False).last.click()
    expect(sweep).to_contain_text("50 of 50")
    expect(lab.part("trials")).to_contain_text("Trials: 50 of 50")
    lab.page.wait_for_function("() => window.dtrainNotices.length > 0")
    lab.execute("application:close")
    lab.finish(1)
    rows = lab.cell(1).locator("table tbody tr")
    expect(rows).to_have_count(50)
    expect(rows.filter(has_text="stopped")).to_have_count(50)
    (told,) = lab.page.evaluate("() => window.dtrainNotices.map(notice => notice.textContent)")
    assert "50 of 50 trials ended" in told
