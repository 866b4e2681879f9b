"""Which widget a kernel shows of a run, by what it knows of its front end."""

from __future__ import annotations

import importlib
import sys
import types

import comm
import ipywidgets
import pytest
import traitlets
from IPython.core.interactiveshell import InteractiveShell

from jupyter_dtrain.notebook import display, front_end, output
from jupyter_dtrain.notebook.front_end import new_run_widget
from jupyter_dtrain.notebook.output import CellOutput
from jupyter_dtrain.notebook.run_widget import RunWidget
from jupyter_dtrain.protocol import WIDGET_MODULE

MODULE = "jupyter_dtrain.notebook.run_anywidget"
VSCODE = {"__vsc_ipynb_file__": "/home/somebody/digits.ipynb"}


class AnyWidget(ipywidgets.DOMWidget):  # type: ignore[misc]  # it has no types
    """anywidget's, as far as it matters here: names of its own, a script in the state. The extra need not be installed."""

    _model_name = traitlets.Unicode("AnyModel").tag(sync=True)
    _model_module = traitlets.Unicode("anywidget").tag(sync=True)


@pytest.fixture
def shell(monkeypatch):
    shell = InteractiveShell.instance()
    monkeypatch.setattr(front_end, "get_ipython", lambda: shell)
    yield shell
    InteractiveShell.clear_instance()


@pytest.fixture
def anywidget(monkeypatch, tmp_path):
    """anywidget, and our script for it."""
    module = types.ModuleType("anywidget")
    vars(module)["AnyWidget"] = AnyWidget
    monkeypatch.setitem(sys.modules, "anywidget", module)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    run_anywidget = importlib.import_module(MODULE)
    for name, text in (("_SCRIPT", "export default {}"), ("_STYLE", ".cell {}")):
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(run_anywidget, name, tmp_path / name)
    yield
    del sys.modules[MODULE]


@pytest.fixture
def messages(monkeypatch):
    """The kinds and contents of what widgets send from now on."""
    sent = []

    class Comm(comm.base_comm.BaseComm):
        def publish_msg(self, msg_type, data=None, metadata=None, buffers=None, **keys):
            sent.append((msg_type, data))

    manager = comm.base_comm.CommManager()
    monkeypatch.setattr(comm, "create_comm", Comm)
    monkeypatch.setattr(comm, "get_comm_manager", lambda: manager)
    yield sent
    assert manager.comms == {}


def test_a_run_widget_is_ended_by_an_update_that_pages_which_do_not_know_it_ignore(shell, messages):
    widget = new_run_widget("dtrain-1", has_extension=True)
    assert widget is not None
    layout = widget.layout
    messages.clear()
    widget.close()
    widget.close()
    assert [(kind, data["state"]) for kind, data in messages] == [("comm_msg", {"ended": True})]
    assert widget.comm is None and layout.comm is None


def test_a_run_widget_elsewhere_is_ended_by_the_end_of_its_comm(shell, anywidget, messages):
    shell.user_ns.update(VSCODE)
    widget = new_run_widget("dtrain-1", has_extension=False)
    assert widget is not None
    messages.clear()
    widget.close()
    assert [kind for kind, _ in messages] == ["comm_close", "comm_close"]


def test_new_run_widget_for_our_extension_brings_no_script(shell, anywidget):
    shell.user_ns.update(VSCODE)
    widget = new_run_widget("dtrain-1", has_extension=True)
    assert type(widget) is RunWidget
    state = widget.get_state()
    assert {state["_model_module"], state["_view_module"]} == {WIDGET_MODULE}
    assert "_esm" not in state and "_css" not in state


def test_new_run_widget_without_it_is_none(shell, anywidget):
    assert new_run_widget("dtrain-1", has_extension=False) is None


@pytest.mark.parametrize("where", ["VS Code", "Colab"])
def test_new_run_widget_elsewhere_brings_its_script(shell, anywidget, monkeypatch, where):
    if where == "Colab":
        monkeypatch.setitem(sys.modules, "google.colab", types.ModuleType("google.colab"))
    else:
        shell.user_ns.update(VSCODE)
    widget = new_run_widget("dtrain-1", has_extension=False)
    assert widget is not None
    state = widget.get_state()
    assert (state["_model_module"], state["_esm"], state["_css"]) == ("anywidget", "export default {}", ".cell {}")
    assert state["summary"] == "dtrain-1"


def test_new_run_widget_elsewhere_without_anywidget_is_none(shell, monkeypatch):
    shell.user_ns.update(VSCODE)
    monkeypatch.setitem(sys.modules, "anywidget", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    assert new_run_widget("dtrain-1", has_extension=False) is None


def test_run_widget_close_leaves_nothing_to_save():
    before = set(ipywidgets.Widget.get_manager_state()["state"])
    widget = RunWidget(summary="dtrain-1")
    assert set(ipywidgets.Widget.get_manager_state()["state"]) > before
    widget.close()
    assert set(ipywidgets.Widget.get_manager_state()["state"]) == before


def test_what_the_project_says_is_no_error_output(capsys, monkeypatch):
    shown = []
    monkeypatch.setattr(display, "publish_display_data", lambda data, metadata: shown.append((data, metadata)))
    monkeypatch.setattr(output, "is_notebook", lambda: True)
    CellOutput().say("going on from <step> 578")
    assert capsys.readouterr() == ("", "")
    ((data, metadata),) = shown
    assert data["text/plain"] == "going on from <step> 578"
    assert "going on from &lt;step&gt; 578" in data["text/html"]
    assert "red" not in data["text/html"]
    assert metadata == display.NOTICE
