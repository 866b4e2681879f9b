"""What a cell shows of its run: a view while it goes on, a summary in its place, and none of it in the way of what the cell prints."""

from __future__ import annotations

import re

from jupyter_dtrain.protocol import TELEMETRY_TARGET, WIDGET_MODULE

WIDGET = "application/vnd.jupyter.widget-view+json"
SETUP = """
import jupyter_dtrain as dtrain, time
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
TRAIN = """%%distribute --engines 2 --name tiny
for step in range(20):
    loss = model(torch.ones(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    dtrain.log(val_loss=loss.item() + 1)
print("end")
"""
OFTEN = """
from jupyter_dtrain.notebook import run_view
kept = run_view.SUMMARY_INTERVAL, run_view.SHARE
run_view.SUMMARY_INTERVAL, run_view.SHARE = 0.0, 1.0
"""
"""Each picture has a summary, however slow the machine is."""
AS_BEFORE = "run_view.SUMMARY_INTERVAL, run_view.SHARE = kept"


def states(cell):
    """Return the snapshots that the widget of the run was given."""
    opened = [content for content in cell.contents("comm_open") if "snapshot" in content["data"].get("state", {})]
    (comm,) = {content["comm_id"] for content in opened}
    updates = [c["data"]["state"] for c in cell.contents("comm_msg") if c["comm_id"] == comm and "state" in c["data"]]
    return [state["snapshot"] for state in updates if state.get("snapshot")]


def models(cell):
    """Return the widgets that the cell has opened, each as the state that a front end or nbclient would save, by their ids."""
    saved: dict[str, dict[str, object]] = {}
    for content in cell.contents("comm_open") + cell.contents("comm_msg"):
        saved.setdefault(content["comm_id"], {}).update(content["data"].get("state", {}))
    return {comm: state for comm, state in saved.items() if "_model_name" in state}


def test_a_view_while_it_trains_and_a_summary_in_its_place(notebook):
    notebook.run(SETUP)
    lab = notebook.open_comm(TELEMETRY_TARGET)  # as our extension does
    notebook.run(OFTEN)
    cell = notebook.run(TRAIN.replace("dtrain.log", "time.sleep(0.1); dtrain.log"))
    notebook.run(AS_BEFORE)
    notebook.close_comm(lab)
    first, live, *more, emptied, last = cell.run_views
    assert live[WIDGET]["model_id"]
    assert set(emptied.values()) == {""}
    assert cell.stdout == "end\n"
    kinds = [message["msg_type"] for message in cell.messages]
    assert kinds.index("display_data") < kinds.index("stream")

    # Beside it, for the day that the kernel does not come to the end, how far the run is; the view hides that on a page that shows it.
    assert more and all(set(summary) == {"text/plain", "text/html"} for summary in (first, *more))
    texts = " ".join(summary["text/plain"] for summary in (first, *more))
    steps = [int(step) for step in re.findall(r"tiny: at step (\d+) after", texts)]
    assert len(steps) == 1 + len(more)
    assert steps == sorted(steps) and steps[-1] > steps[0]
    assert "there is no checkpoint yet" in first["text/html"]
    (hides,) = {state["summary"] for content in cell.contents("comm_open") if "summary" in (state := content["data"].get("state", {}))}
    assert first["text/html"].startswith(f'<div id="{hides}">')

    # It brings no script: its model and its view are those of the extension; and nothing of it is left to be saved.
    opened = models(cell)
    names = {(state["_model_module"], state["_model_name"], state["_view_module"], state["_view_name"]) for state in opened.values()}
    assert (WIDGET_MODULE, "RunModel", WIDGET_MODULE, "RunView") in names
    assert {state["_model_module"] for state in opened.values()} == {WIDGET_MODULE, "@jupyter-widgets/base"}  # its layout's
    assert not [name for state in opened.values() for name in state if name in ("_esm", "_css")]
    # Its model ends itself, and its layout: the end of a comm that a page does not know is an error to JupyterLab.
    assert [state["ended"] for state in opened.values() if "ended" in state] == [True]
    assert not cell.contents("comm_close")

    # It was written anew while the cell went on, with the curves so far.
    shown = states(cell)
    assert len(shown) > 1
    (loss,) = [points for points in shown[-1]["points"] if points["name"] == "loss"]
    assert len(loss["step"]) == len(loss["value"]) > 1
    assert shown[-1]["run"]["phase"] == "running"

    # What stays needs no script, and is in the place of the first summary.
    assert set(last) == {"text/plain", "text/html"}
    assert last["text/plain"].startswith("tiny: finished, 20 steps in ")
    assert "on 2 engines" in last["text/plain"]
    assert "<b>tiny</b>: finished, 20 steps" in last["text/html"]
    assert "<td>val_loss</td>" in last["text/html"]
    assert '<img alt="Curves of loss"' in last["text/html"]


def test_a_front_end_without_the_extension_has_the_summary_as_it_goes_on(notebook):
    notebook.run(SETUP)
    notebook.run(OFTEN)
    cell = notebook.run(TRAIN.replace("dtrain.log", "time.sleep(0.1); dtrain.log"))
    notebook.run(AS_BEFORE)
    first, *_, last = cell.run_views
    assert "tiny: at step " in first["text/plain"]
    assert last["text/plain"].startswith("tiny: finished, 20 steps in ")
    assert len(cell.contents("display_data")) - len(cell.notices) == 1  # in its place, and no empty output beside it
    assert models(cell) == {}  # nbclient and papermill keep what was opened, even what was closed


def test_a_console_which_shows_nothing_anew_has_the_summary_at_the_end(notebook):
    notebook.run(SETUP)
    notebook.has_cells = False
    try:
        cell = notebook.run(TRAIN)
    finally:
        notebook.has_cells = True
    (only,) = cell.run_views
    assert only["text/plain"].startswith("tiny: finished, 20 steps in ")


def test_a_view_for_a_front_end_that_comes_while_the_cell_runs(notebook):
    notebook.run(SETUP)
    cell = notebook.start(TRAIN.replace("dtrain.log", "time.sleep(0.2); dtrain.log"))
    notebook.wait(lambda: cell.run_views, "the summary", cell)
    lab = notebook.open_comm(TELEMETRY_TARGET)
    notebook.finish(cell)
    notebook.close_comm(lab)
    assert [view[WIDGET]["model_id"] for view in cell.run_views if WIDGET in view] == [
        comm for comm, state in models(cell).items() if state["_model_name"] == "RunModel"
    ]
    assert states(cell)


def test_a_summary_alone_or_nothing_on_request(notebook):
    notebook.run(SETUP)
    (only,) = notebook.run(TRAIN.replace("--name", "--view summary --name")).run_views
    assert "<b>tiny</b>" in only["text/html"]
    assert notebook.run(TRAIN.replace("--name", "--view off --name")).run_views == []
    notebook.run("%config DistributeMagics.view = 'off'")
    assert notebook.run(TRAIN).run_views == []
    (only,) = notebook.run(TRAIN.replace("--name", "--view summary --name")).run_views
    assert "<b>tiny</b>" in only["text/html"]
    notebook.run("%config DistributeMagics.view = 'live'")
    wrong = notebook.fail("%%distribute --view loud\npass")
    assert wrong.error[1] == "--view loud: choose live or summary or off."


def test_a_cell_that_trains_nothing_shows_nothing(notebook):
    notebook.run(SETUP)
    cell = notebook.run("%%distribute --engines 2\nprint(model(torch.ones(2, 4)).shape)")
    assert (cell.run_views, cell.stdout) == ([], "torch.Size([2, 1])\n")


def test_a_cell_that_clears_its_output_has_its_summary(notebook):
    notebook.run(SETUP)
    cell = notebook.run(TRAIN.replace("print", "from IPython.display import clear_output; clear_output(wait=True); print"))
    *_, last = cell.run_views
    assert "20 steps" in last["text/plain"]
    kinds = [message["msg_type"] for message in cell.messages]
    assert "display_data" in kinds[kinds.index("clear_output") :]


def test_a_cell_that_fails_says_how_far_it_came(notebook):
    notebook.run(SETUP)
    cell = notebook.fail(TRAIN + "1 / 0")
    assert cell.error[0] == "ZeroDivisionError"
    assert cell.run_views[-1]["text/plain"].startswith("tiny: failed, 20 steps in ")
