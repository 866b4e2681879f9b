"""Where the time of a run goes, and the runs of a folder: found, marked, drawn beside each other, compared, deleted."""

import re

import pytest
from playwright.sync_api import expect

from jupyter_dtrain.runs.store import RunStore

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

SETUP = """
%load_ext jupyter_dtrain
import time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 320
    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.ones(4), torch.ones(1)

loader = DataLoader(Slow(), batch_size=8)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
TRAIN = """%%distribute --engines 2 --output all --name {name}
for epoch in range({epochs}):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch == {broken}:
            raise ValueError("enough")
    print("epoch", epoch)
"""
CELLS = {
    "setup": SETUP,
    "first": TRAIN.format(name="first", epochs=4, broken=-1),
    "second": TRAIN.format(name="second", epochs=1, broken=-1),
    "broken": TRAIN.format(name="broken", epochs=1, broken=0),
}
setup, first, second, broken = range(len(CELLS))

NOTEBOOK = "const notebook = window.jupyterapp.shell.currentWidget.content;"
SELECT = f"index => {{ {NOTEBOOK} notebook.activeCellIndex = index; }}"
EDIT_SOURCE = f"([index, text]) => {{ {NOTEBOOK} notebook.widgets[index].model.sharedModel.setSource(text); }}"
PASTE_AGAIN = f"""([index, source]) => {{
  {NOTEBOOK}
  notebook.model.sharedModel.deleteCell(index);
  notebook.model.sharedModel.insertCell(index, {{ cell_type: 'code', source }});
  notebook.activeCellIndex = 0;
}}"""


def past_run(lab, name):
    button = lab.page.get_by_role("button", name=name, exact=True)
    return lab.part("past-run").filter(has=button)


def names(lab):
    return lab.part("past-runs").locator(".jp-dtrain-past-run-name").all_inner_texts()


@pytest.mark.long
def test_where_the_time_goes_and_the_runs_of_a_folder(open_lab, screenshot):
    lab = open_lab(*CELLS.values())
    lab.open_sidebar()
    lab.resize_sidebar(300)
    lab.run(setup)
    lab.expect_cluster("stopped")
    opener = lab.page.get_by_role("button", name="Past runs")
    opener.click()
    expect(lab.part("past-runs")).to_contain_text("No runs recorded in this folder")
    opener.click()

    # The loader is slow on purpose: the bars show it, and the sentence says what to do.
    lab.run(first)
    lab.expect_phase("finished")
    expect(lab.part("times")).to_have_attribute("data-advice", "data")
    expect(lab.part("advice")).to_have_text(
        re.compile(r"Rank [01] waits [5-9]\d% of its time for data: try num_workers=4 in the DataLoader\.")
    )
    bars = lab.part("rank-times")
    expect(bars).to_have_count(2)
    for rank in range(2):
        split = bars.nth(rank).get_by_role("img")
        shares = [int(share) for share in re.findall(r"(\d+)%", split.get_attribute("aria-label") or "")]
        assert len(shares) == 6
        assert sum(shares) == pytest.approx(100, abs=4)
        whole, data = split.bounding_box(), split.locator("[data-part=data]").bounding_box()
        assert data["width"] > 0.5 * whole["width"]
    assert lab.cut_off() == []

    # Other runs are listed as they end.
    opener.click()
    lab.run(second)
    lab.start(broken)
    lab.finish(broken)
    lab.expect_phase("failed")
    expect(lab.part("past-run")).to_have_count(3)
    assert names(lab) == ["broken", "second", "first"]
    expect(past_run(lab, "first")).to_contain_text(re.compile(r"loss [\d.e-]+ · 160 steps · [\d.]+ s"))
    expect(past_run(lab, "broken")).to_have_attribute("data-phase", "failed")
    lab.part("run-sort").select_option("name")
    assert names(lab) == ["broken", "first", "second"]

    # Renamed, tagged, found by the tag.
    lab.page.get_by_role("button", name="second", exact=True).click()
    row = past_run(lab, "second")
    row.get_by_label("Name").fill("a very long name for a run that was once called the second one")
    row.get_by_label("Name").press("Enter")
    row = past_run(lab, "a very long name for a run that was once called the second one")
    row.get_by_label("Tags").fill("baseline, slow loader")
    row.get_by_label("Tags").press("Enter")
    expect(row.get_by_role("list", name="Tags").get_by_role("listitem")).to_have_text(["baseline", "slow loader"])
    lab.part("run-filter").fill("BASE")
    expect(lab.part("past-run")).to_have_count(1)
    lab.part("run-filter").fill("")
    assert lab.cut_off() == []

    # What it has printed, of each rank.
    output = row.get_by_role("button", name="Output")
    output.press("Enter")
    expect(row.get_by_role("region", name="Output of rank 0")).to_have_text("epoch 0\n", use_inner_text=True)
    row.get_by_role("combobox", name="Rank").select_option("1")
    expect(row.get_by_role("region", name="Output of rank 1")).to_contain_text("epoch 0")
    assert lab.cut_off() == []
    assert lab.faults() == []
    output.click()
    expect(row.get_by_role("region")).to_have_count(0)

    # From a run to its cell: by its id, also when the text has changed, or by its text when the notebook has another.
    go = row.get_by_role("button", name="Go to cell")
    go.click()
    expect(lab.cell(second)).to_have_class(re.compile("jp-mod-active"))
    lab.page.evaluate(EDIT_SOURCE, [second, "# another text"])
    lab.page.evaluate(SELECT, setup)
    go.click()
    expect(lab.cell(second)).to_have_class(re.compile("jp-mod-active"))
    lab.page.evaluate(PASTE_AGAIN, [second, CELLS["second"]])
    go.click()
    expect(lab.cell(second)).to_have_class(re.compile("jp-mod-active"))
    lab.page.evaluate(EDIT_SOURCE, [second, "# gone"])
    go.click()
    expect(row).to_contain_text("This cell is no longer in notebook.ipynb.")
    assert lab.cut_off() == []

    # Drawn beside the run that is there, and compared.
    figure = lab.sidebar.locator('figure[data-series="loss"]')
    for name in ("first", "a very long name"):
        lab.page.get_by_role("checkbox", name=f"Show the curves of {name}").check()
    figure.scroll_into_view_if_needed()  # charts are drawn where they are seen
    expect(figure.locator(".jp-dtrain-legend li")).to_have_count(3)
    expect(figure.locator(".jp-dtrain-legend-name")).to_have_text(["broken", "first", re.compile("a very long name")])
    select = row.get_by_label("Compare")
    select.select_option(value=select.locator("option", has_text="first").get_attribute("value"))
    comparison = lab.part("comparison")
    expect(comparison.get_by_role("heading", level=3)).to_have_text(re.compile("first → a very long name"))
    expect(comparison).to_contain_text("Same hyperparameters.")
    expect(comparison.get_by_role("rowheader")).to_have_text(["random state"])
    expect(comparison.locator("[data-change=removed]")).to_have_text("-for epoch in range(4):")
    expect(comparison.locator("[data-change=added]")).to_have_text("+for epoch in range(1):")
    assert lab.cut_off() == []
    comparison.scroll_into_view_if_needed()
    screenshot(lab, "runs", cell=second)

    # For those who do not see it or use no mouse, in every theme.
    assert lab.faults_in_every_theme() == []

    # Deleted, after a question, with its files and its curve.
    store = RunStore(lab.path.parent / "dtrain-runs")
    folder = next(run.folder for run in store.list_runs() if run.name == "first")
    lab.page.get_by_role("button", name="first", exact=True).click()
    row = past_run(lab, "first")
    row.get_by_role("button", name="Delete…").click()
    row.get_by_role("button", name="Cancel").click()
    assert folder.exists()
    row.get_by_role("button", name="Delete…").click()
    row.get_by_role("button", name="Delete", exact=True).click()
    expect(lab.part("past-run")).to_have_count(2)
    figure.scroll_into_view_if_needed()
    expect(figure.locator(".jp-dtrain-legend li")).to_have_count(2)
    assert not folder.exists()
    assert [run.name for run in store.list_runs()] == ["a very long name for a run that was once called the second one", "broken"]
    store.close()
