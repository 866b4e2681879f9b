"""Update the notebook's ipywidgets (a label, a progress bar, a slider that is read) from a cell on engines.

An engine has a widget of the same class with the same values. What the cell sets in it is sent to the notebook's widget at once, as a
display with a type of its own, in order with the cell's output, and from there to the browser. The notebook's observers are called in the
notebook.
"""

from __future__ import annotations

import base64
import importlib
import os
import sys
from typing import Any, ClassVar

from .base import Integration

UPDATE = "application/vnd.jupyter-dtrain.widget-update"
"""Type of a display that carries a widget's change to the notebook."""
_OF_THE_PROCESS = frozenset(("comm", "log", "keys", "_model_id", "_property_lock", "_states_to_send", "_holding_sync"))


def _widgets() -> Any:
    return importlib.import_module("ipywidgets.widgets.widget")


def is_widget(obj: object) -> bool:
    """Return whether `obj` is a widget of ipywidgets."""
    module = sys.modules.get("ipywidgets.widgets.widget")
    return module is not None and issubclass(type(obj), module.Widget)  # `type`, as an object may not support `isinstance`


def reduced_widget(obj: Any) -> Any:
    """Return a reduction of a widget to its counterpart in the other process."""
    if not is_widget(obj):
        return NotImplemented
    kind: Any = type(obj)
    made_by_new = vars(kind.__new__(kind))
    attributes = {name: value for name, value in vars(obj).items() if name not in made_by_new}
    state = tuple(
        {
            name: value
            for name, value in values.items()
            if name not in _OF_THE_PROCESS and not isinstance(value, _widgets().CallbackDispatcher)
        }
        for values in (obj._trait_values, attributes)
    )
    return _standing_for, (kind, obj.model_id), state, None, None, _set_state


def _standing_for(kind: Any, model_id: str) -> Any:
    """Return the widget with this id: the notebook's own, or a counterpart in this process."""
    found = _widgets()._instances.get(model_id)
    if type(found) is kind:
        return found
    made = kind.__new__(kind)
    made._model_id = model_id
    return made


def _set_state(widget: Any, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    if widget.comm is not None and not isinstance(widget.comm, _Line):
        return  # the notebook's own widget has got each change already
    values, attributes = state
    widget._trait_values.update(values)
    vars(widget).update(attributes)
    if widget.comm is None and _is_engine():
        widget.comm = _Line(widget._model_id)
    elif widget.comm is None:  # the cell has created it
        widget._model_id = None
        widget.open()


def _is_engine() -> bool:
    return "JUPYTER_DTRAIN_RANK" in os.environ


class _Line:
    """Replacement for a widget's comm on an engine."""

    def __init__(self, comm_id: str) -> None:
        self.comm_id = comm_id

    def send(self, data: dict[str, Any], metadata: Any = None, buffers: Any = None) -> None:
        """Send updates of the widget's state to the notebook; ignore other messages."""
        del metadata
        if data.get("method") != "update":
            return
        from IPython.display import publish_display_data

        coded = [base64.b64encode(bytes(buffer)).decode() for buffer in buffers or ()]
        content = {"id": self.comm_id, "state": data["state"], "paths": data.get("buffer_paths", []), "buffers": coded}
        publish_display_data({UPDATE: content})

    def on_msg(self, _callback: Any) -> None:
        """Do nothing, as no messages arrive on an engine."""

    on_close = on_msg

    def close(self, *_: Any, **__: Any) -> None:
        """Do nothing: the notebook's widget stays open."""


def handle(content: dict[str, Any]) -> None:
    """Apply a change of an engine's widget to the notebook's."""
    widgets = _widgets()
    widget: Any = widgets._instances.get(content["id"])
    if widget is None:  # closed
        return
    state = content["state"]
    widgets._put_buffers(state, content["paths"], [base64.b64decode(buffer) for buffer in content["buffers"]])
    if state.get("msg_id"):  # an `Output` that captures what is displayed from here on
        state["msg_id"] = _running_message()
    with widget.hold_sync():
        for name, value in state.items():
            from_json = widget.trait_metadata(name, "from_json", widget._trait_from_json)
            widget.set_trait(name, from_json(value, widget))


def _running_message() -> str:
    from IPython import get_ipython

    kernel = getattr(get_ipython(), "kernel", None)
    return "" if kernel is None else str(kernel.get_parent("shell").get("header", {}).get("msg_id", ""))


class IpyWidgets(Integration):
    """Widgets reduce to counterparts; their updates are sent as displays."""

    displays: ClassVar = {UPDATE: handle}

    def reduce(self, obj: Any) -> Any:
        """Return a reduction of a widget."""
        return reduced_widget(obj)

    def is_found_by_id(self, obj: object) -> bool:
        """Return whether `obj` is a widget."""
        return is_widget(obj)


INTEGRATION = IpyWidgets()
