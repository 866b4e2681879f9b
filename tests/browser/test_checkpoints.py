"""Checkpoints as a person handles them: kept, gone back to, loaded, exported, deleted, and resumed from when the kernel is gone."""

import re

import pytest
from playwright.sync_api import expect
from safetensors import safe_open

from tests.browser import cells

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

TRAIN = cells.TRAIN.format(name="kept", steps=4000)
# The step that is shown falls, and so does the number of points: noticed whenever it happens, for the run goes on at once.
WATCH = """([step, chart]) => {
    const find = text => document.querySelector(text);
    const shown = () => [find(step)?.textContent.replace(',', ''), find(chart)?.dataset.points].map(Number);
    let before = shown();
    window.wentBack = [false, false];
    new MutationObserver(() => {
        const now = shown();
        now.forEach((value, i) => { window.wentBack[i] ||= value < before[i]; });
        before = now;
    }).observe(document.body, { subtree: true, childList: true, characterData: true, attributeFilter: ['data-points'] });
}"""
setup, train = range(2)


def pinned(lab):
    """Return the checkpoints that stay; others come and go while the run goes on."""
    return lab.part("checkpoint").filter(has=lab.page.get_by_text("pinned", exact=True))


def keep(lab):
    """Write a checkpoint, and wait until it is listed."""
    before = pinned(lab).count()
    lab.part("checkpoint-now").click()
    expect(pinned(lab)).to_have_count(before + 1)


@pytest.mark.long
def test_checkpoints_are_kept_and_used_while_the_cell_runs_and_after_it(open_lab, screenshot):
    lab = open_lab(cells.SETUP, TRAIN)
    lab.open_sidebar()
    lab.resize_sidebar(300)
    lab.run(setup)
    lab.start(train)
    lab.wait_for_points(20)
    section, answer = lab.part("checkpoints"), lab.part("checkpoint-answer")
    expect(section).to_contain_text("No checkpoints yet.")
    expect(lab.part("free")).to_have_text(re.compile(r"[\d.]+ (MiB|GiB|TiB) free"))

    # Two are kept; the newer is the last, and the best while the loss falls.
    keep(lab)
    lab.wait_for_points(lab.points() + 30)
    keep(lab)
    expect(lab.part("checkpoint").first.get_by_role("listitem").filter(has_text="last")).to_have_count(1)
    expect(lab.part("checkpoint").get_by_text("best", exact=True)).to_have_count(1)
    step = int(pinned(lab).last.get_attribute("data-step"))
    older = section.locator(f'[data-step="{step}"]')
    expect(older).to_contain_text(re.compile(r"Step \d+\s*pinned\s*loss [\d.]+ · [\d.]+ (KiB|MiB) · \d+ (s|min) ago"))
    older.get_by_role("button", name=re.compile("Step")).click()
    assert lab.cut_off() == []
    assert lab.faults_in_every_theme() == []
    section.scroll_into_view_if_needed()
    screenshot(lab, "checkpoints", cell=train)

    # Back to the older one, while the cell runs.
    lab.page.evaluate(WATCH, [lab.selector("step"), lab.curve_selector("loss")])
    lab.part("checkpoint-roll-back").click()
    expect(lab.part("run-answer")).to_have_text(re.compile(rf"Going back to step {step}\.|The run has gone back to step {step}\."))
    lab.page.wait_for_function("window.wentBack.every(Boolean)")  # at once, and the curve after it is cut
    expect(lab.cell(train)).to_contain_text(f"Going back to step {step}.")  # the ranks have, too
    lab.wait_for_points(step + 10)
    expect(lab.part("run-answer")).to_have_text(re.compile(r"The run has gone back to step \d+\."))
    assert lab.is_running(train)

    # Read into the notebook, by a cell that is there to be run.
    lab.part("checkpoint-load").click()
    expect(lab.page.locator(".jp-CodeCell")).to_have_count(4)
    lab.part("stop").click()
    lab.expect_phase("stopped")
    lab.finish(train)
    source = f'jupyter_dtrain.load_checkpoint("{lab.part("run").get_attribute("data-run-id")}", {step})'
    added = lab.page.locator(".jp-CodeCell").filter(has_text=source)
    expect(added).to_have_count(1)
    index = lab.page.locator(".jp-CodeCell").all_inner_texts().index(added.inner_text())
    assert "'optimizer'" in lab.run(index)

    # Exported for other programs, which read in it what the checkpoint held.
    lab.part("checkpoint-export").click()
    expect(answer).to_contain_text(".safetensors")
    (exported,) = lab.path.parent.rglob("*.safetensors")
    with safe_open(exported, "pt") as file:
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
    assert {name: tuple(weight.shape) for name, weight in weights.items()} == {"weight": (1, 4), "bias": (1,)}
    shown = re.search(r"loss ([\d.]+)", older.inner_text())
    assert shown
    after = (weights["weight"].sum() + weights["bias"]).square().item()  # one step later than that loss
    assert after == pytest.approx(float(shown[1]), rel=0.1)

    # Resumed from there, by another one; unpinned; deleted after a question.
    lab.part("checkpoint-resume").click()
    expect(lab.page.locator(".jp-CodeCell").filter(has_text=re.compile(rf"%distribute resume \S+@{step}"))).to_have_count(1)
    lab.part("checkpoint-pin").click()
    expect(answer).to_contain_text("is kept as long as it is among the last")
    expect(older.get_by_text("pinned", exact=True)).to_have_count(0)
    lab.part("checkpoint-delete").click()
    lab.part("checkpoint-keep").click()
    expect(older).to_have_count(1)
    lab.part("checkpoint-delete").click()
    lab.part("checkpoint-delete-now").click()
    expect(older).to_have_count(0)
    expect(answer).to_have_text(f"The checkpoint of step {step} is deleted.")
    assert lab.cut_off() == []
