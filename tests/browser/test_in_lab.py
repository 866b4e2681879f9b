"""The sidebar among JupyterLab's own things: several notebooks, menus, status bar, settings, notifications; kernels that go away."""

import json
import re

import nbformat
import psutil
import pytest
from playwright.sync_api import expect

from jupyter_dtrain.runs.store import RunStore
from tests.browser import cells

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

SETUP = (
    cells.SETUP
    + """
import os
print("process", os.getpid())
"""
)
setup, train, unload, reload = range(4)


@pytest.fixture
def settings(server):
    """Settings of the user's own, for one test."""
    file = server.settings / "jupyter-dtrain" / "sidebar.jupyterlab-settings"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"smoothing": 0.5, "notifyAfter": 1}))
    yield
    file.unlink()


@pytest.fixture
def new_user(server):
    """Settings of somebody who has not seen a run yet."""
    file = server.settings / "jupyter-dtrain" / "sidebar.jupyterlab-settings"
    file.unlink(missing_ok=True)
    yield
    file.unlink(missing_ok=True)


def open_another(lab, *texts, name):
    """Open a second notebook in the same page."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in texts])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, lab.path.with_name(name))
    lab.execute("docmanager:open", path=f"{lab.path.parent.name}/{name}")


def go_to(lab, name):
    """Bring the notebook with this file name to the front."""
    lab.page.locator("#jp-main-dock-panel .lm-TabBar-tab").filter(has_text=name).click()
    lab.wait_until_ready()


@pytest.mark.long
def test_two_notebooks_at_once(open_lab, settings):
    long, short = cells.TRAIN.format(name="long", steps=100_000), cells.TRAIN.format(name="short", steps=100)
    lab = open_lab(SETUP, long, name="one.ipynb")
    page = lab.page
    page.get_by_role("menuitem", name="View", exact=True).click()
    page.get_by_role("menuitem", name="Show Distributed Training").click()
    expect(lab.sidebar).to_be_visible()
    lab.resize_sidebar(300)
    lab.run(setup)
    lab.start(train)
    lab.wait_for_points(10)
    expect(lab.part("smoothing")).to_have_value("0.5")  # the user's setting
    item = page.get_by_test_id("jp-dtrain-status-item")
    expect(item).to_have_text(re.compile(r"Running · step \d+ · loss [\d.]+"))

    # A second notebook has a kernel, engines and a run of its own.
    open_another(lab, SETUP, short, name="two.ipynb")
    expect(lab.part("status")).to_have_attribute("data-status", re.compile("starting|waiting|absent"))
    expect(lab.part("status")).not_to_contain_text("Open a notebook")
    lab.wait_until_ready()
    lab.run(setup)
    lab.expect_cluster("stopped")
    expect(lab.part("run")).to_have_attribute("data-phase", "none")
    lab.start(train)
    lab.expect_phase("running")
    expect(lab.sidebar.locator(".jp-dtrain-run-name")).to_have_text("short")

    # Back in the first one, that one's run is shown, and the second's end is told.
    go_to(lab, "one.ipynb")
    expect(lab.sidebar.locator(".jp-dtrain-run-name")).to_have_text("long")
    notice = page.locator(".Toastify__toast").filter(has_text=re.compile(r"“short” finished \(100 steps in 0:\d\d, loss"))
    expect(notice).to_be_visible()
    lab.wait_for_points(lab.points() + 10)

    # JupyterLab's own panel of what is running has the run, and the engines of both notebooks.
    lab.execute("running:show-panel")
    items = page.locator(".jp-RunningSessions-item").filter(has_text=re.compile("long|2 engines"))
    expect(items).to_have_count(3)
    expect(items.filter(has_text="long")).to_contain_text("Running")
    expect(items.filter(has_text="2 engines")).to_have_count(2)
    lab.execute("filebrowser:activate")

    # A run is stopped from the menu of kernels; the entry that cannot act is disabled.
    page.get_by_role("menuitem", name="Kernel", exact=True).click()
    expect(page.get_by_role("menuitem", name="Stop Training Engines")).to_have_class(re.compile("lm-mod-disabled"))
    page.get_by_role("menuitem", name="Stop the Distributed Run").click()
    lab.expect_phase("stopped")
    lab.finish(train)
    go_to(lab, "two.ipynb")
    lab.expect_phase("finished")
    lab.expect_points(100)
    lab.sidebar.evaluate("() => window.jupyterapp.shell.collapseRight()")
    item.click()
    expect(lab.sidebar).to_be_visible()

    # The engines of one of them are stopped there.
    lab.execute("running:show-panel")
    expect(items).to_have_count(2)
    items.first.hover()
    items.first.get_by_title("Stop", exact=True).click()
    expect(items).to_have_count(1)

    store = RunStore(lab.path.parent / "dtrain-runs")
    assert {run.name: run.phase for run in store.list_runs()} == {"long": "stopped", "short": "finished"}
    store.close()


@pytest.mark.long
def test_the_sidebar_opens_by_itself_at_the_first_run_and_never_again(open_lab, new_user):
    lab = open_lab(SETUP, cells.TRAIN.format(name="run", steps=100))
    lab.run(setup)
    expect(lab.sidebar).not_to_be_visible()
    lab.start(train)
    expect(lab.sidebar).to_be_visible()
    assert lab.page.evaluate("document.activeElement.closest('.jp-Notebook') !== null"), "the keyboard is the notebook's still"
    lab.finish(train)
    lab.close_sidebar()

    lab.run(train)
    lab.page.reload()
    lab.wait_until_ready()
    lab.run(train)
    expect(lab.sidebar).not_to_be_visible()


@pytest.mark.long
def test_a_kernel_that_is_killed_and_an_extension_that_is_unloaded(open_lab):
    lab = open_lab(SETUP, cells.TRAIN.format(name="long", steps=2000), "%unload_ext jupyter_dtrain", "%load_ext jupyter_dtrain")
    lab.open_sidebar()
    lab.resize_sidebar(300)
    kernel = psutil.Process(int(lab.run(setup).split()[-1]))
    lab.start(train)
    lab.wait_for_points(20)
    engines = [psutil.Process(int(number)) for number in re.findall(r"process (\d+)", lab.sidebar.inner_html())]
    assert len(engines) == 2
    kernel.kill()
    lab.expect_phase("lost")
    points = lab.points()
    assert points >= 20
    expect(lab.part("run-phase")).to_have_text("Kernel ended")
    expect(lab.part("rank")).to_have_count(0)
    assert psutil.wait_procs(engines, timeout=60)[1] == []
    lab.page.get_by_role("button", name=re.compile("^Ok$", re.IGNORECASE)).click()  # JupyterLab says that the kernel has died
    expect(lab.part("status")).to_have_attribute("data-status", "absent")
    assert lab.points() == points
    assert lab.cut_off() == []

    # What the record has of it says how it ended.
    lab.run(reload)
    lab.expect_cluster("stopped")
    lab.page.get_by_role("button", name="Past runs").click()
    expect(lab.part("past-run")).to_have_attribute("data-phase", "failed")
    lab.page.get_by_role("button", name="long", exact=True).click()
    expect(lab.part("past-run")).to_contain_text("The notebook kernel that ran it")

    # The kernel closes the comms; they are opened again when the extension is back.
    lab.run(unload)
    expect(lab.part("status")).to_have_attribute("data-status", "absent")
    expect(lab.part("cluster")).to_have_count(0)
    lab.run(reload)
    lab.expect_cluster("stopped")
    expect(lab.part("status")).to_have_count(0)
