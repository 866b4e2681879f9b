"""The run in the output of its cell: watched while it goes on, readable when the kernel is gone, harmless in a notebook from elsewhere."""

import json
import re

import nbformat
import pytest
from nbconvert import HTMLExporter
from playwright.sync_api import expect

from jupyter_dtrain.notebook.run_widget import RunWidget
from jupyter_dtrain.protocol import PROTOCOL_VERSION, ClusterUpdate, Points, RunUpdate, Snapshot

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

SETUP = """
%load_ext jupyter_dtrain
import jupyter_dtrain as dtrain, math, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.ones(250 * 8, 4)), batch_size=8)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
TRAIN = """%%distribute --engines 2 --name "a run in its cell"
print("before")
for step, (x,) in enumerate(loader):
    time.sleep(0.03)
    loss = model(x).square().mean() + math.exp(-step / 50)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    dtrain.log(accuracy=1 - math.exp(-step / 60), val_loss=loss.item() + 0.1)
print("after")
"""
setup, train = range(2)
VIEW = "application/vnd.jupyter.widget-view+json"
STATE = "application/vnd.jupyter.widget-state+json"
SCRIPT = "window.hostile = true"
MARKUP = f'<img src="nowhere" onerror="{SCRIPT}">'


@pytest.fixture
def saving_widgets(server):
    """Let JupyterLab save the state of widgets, as its menu *Settings* offers."""
    file = server.settings / "@jupyter-widgets" / "jupyterlab-manager" / "plugin.jupyterlab-settings"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"saveState": True}))
    yield
    file.unlink()


def test_a_run_watched_in_its_cell_and_kept_in_the_notebook(open_lab, screenshot, saving_widgets):
    lab = open_lab(SETUP, TRAIN)
    lab.run(setup)
    lab.start(train)
    view = lab.cell(train).locator(".jp-dtrain-cell")
    expect(view).to_have_attribute("data-phase", "running")
    kept = lab.cell(train).locator('.jp-OutputArea-output[data-mime-type="text/html"]').first
    expect(kept).to_be_hidden()  # as long as the view is there
    loss = view.locator('figure[data-series="loss"]')
    expect(loss.locator(".jp-dtrain-legend-name")).to_have_text(["Loss", "val_loss"])
    expect(view.locator('figure[data-series="accuracy"]')).to_be_visible()
    expect(view.get_by_test_id("jp-dtrain-step")).to_have_text(re.compile(r"\d\d+"))
    seen = int(loss.get_attribute("data-points"))
    expect(loss).not_to_have_attribute("data-points", str(seen))  # it goes on
    assert lab.is_running(train)
    assert int(loss.get_attribute("data-points")) > seen
    assert lab.cut_off(view) == []
    assert lab.faults(view) == []
    screenshot(lab, "cell", cell=train)
    lab.change_theme("JupyterLab Light")

    # What stays is a table and a picture, in the view's place above what the cell printed.
    lab.finish(train)
    expect(view).to_have_count(0)
    expect(kept).to_contain_text(re.compile(r"a run in its cell: finished, 250 steps in [\d.:]+ (s|min), \d+ samples/s on 2 engines"))
    picture = kept.get_by_role("img", name="Curves of loss, accuracy")
    assert picture.evaluate("node => node.decode().then(() => node.naturalWidth)") > 300
    rows = kept.locator("tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.first.locator("td").nth(0)).to_have_text("loss")
    expect(rows.first.locator("td").nth(2)).to_have_text(re.compile(r"0\.0\d+"))  # the last value
    assert lab.cell(train).locator('[data-mime-type="application/vnd.jupyter.stdout"]').inner_text() == "before\nafter\n"
    screenshot(lab, "summary", cell=train)

    # So does the notebook that is saved, without a widget that nobody could draw.
    lab.save()
    notebook = nbformat.read(lab.path, as_version=4)
    outputs = notebook.cells[train].outputs
    *displays, printed = outputs
    assert printed.output_type == "stream"
    _engines_ready, summary, live = (display.data for display in displays)
    assert set(summary) == set(live) == {"text/plain", "text/html"}
    assert set(live.values()) == {""}
    assert notebook.metadata.widgets[STATE]["state"] == {}
    assert "_esm" not in lab.path.read_text()
    html, _ = HTMLExporter().from_notebook_node(notebook)
    assert "finished, 250 steps" in html
    assert 'alt="Curves of loss, accuracy"' in html


def hostile_notebook():
    """Return a notebook that somebody else has written: a model and a view of our names, with script wherever there is a text."""
    run = RunUpdate(run_id=MARKUP, name=MARKUP, phase="failed", world_size=2, started=0.0, elapsed=1.0, step=3, error=MARKUP)
    points = [Points(run_id=MARKUP, name=MARKUP, step=[1, 2, 3], value=[1.0, 2.0, 3.0], time=[])]
    snapshot = Snapshot(version=PROTOCOL_VERSION, cluster=ClusterUpdate(phase="running", detail=MARKUP), run=run, points=points)
    state = RunWidget(summary="").get_state() | {
        "layout": None,
        "summary": "x, .jp-Notebook { display: none; } </style>" + MARKUP,
        "snapshot": snapshot.to_json(),
        "_esm": f"{SCRIPT}; export default {{ initialize() {{ {SCRIPT} }}, render() {{ {SCRIPT} }} }}",
        "_css": ".jp-Notebook { display: none; }",
    }
    names = {name: state[name] for name in ("_model_name", "_model_module", "_model_module_version")}
    model = {key.removeprefix("_"): value for key, value in names.items()} | {"state": state}
    output = nbformat.v4.new_output(
        "display_data", {"text/plain": "not drawn", VIEW: {"version_major": 2, "version_minor": 0, "model_id": "hostile"}}
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", execution_count=1, outputs=[output])])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.metadata.widgets = {STATE: {"version_major": 2, "version_minor": 0, "state": {"hostile": model}}}
    return notebook


def test_a_notebook_from_elsewhere_runs_no_script(open_lab):
    lab = open_lab("1")
    nbformat.write(hostile_notebook(), lab.path.with_name("hostile.ipynb"))
    lab.execute("docmanager:open", path=f"{lab.path.parent.name}/hostile.ipynb")
    lab.wait_until_ready()
    cell = lab.cell(0)
    expect(cell.locator(".jp-OutputArea-output")).to_have_text("not drawn")
    assert lab.page.evaluate("window.hostile") is None

    # Nor does it when the user trusts it: its texts are shown as texts, and it hides nothing.
    lab.page.evaluate("() => { window.jupyterapp.commands.execute('notebook:trust'); }")
    lab.page.locator(".jp-Dialog button.jp-mod-warn, .jp-Dialog button.jp-mod-accept").last.click()
    view = cell.locator(".jp-dtrain-cell")
    expect(view.locator(".jp-dtrain-cell-name")).to_have_text(MARKUP)
    expect(view.locator("figure")).to_have_count(1)
    expect(cell).to_be_visible()
    assert lab.page.evaluate("window.hostile") is None
