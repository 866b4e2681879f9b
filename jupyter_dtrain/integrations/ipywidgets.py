"""Widgets of ipywidgets that the notebook has made and the cell updates: a label, a bar, a slider that is read.

On an engine stands a widget of the same class with the same values. What the cell sets in it goes to the notebook's own at once, in the
order of what the cell prints, and from there to the browser; the notebook's observers are called there. It travels as a display of a type
of its own.
"""

from __future__ import annotations

import base64
import importlib
import os
import sys
from typing import Any, ClassVar

from .base import Integration

UPDATE = "application/vnd.jupyter-dtrain.widget-update"
"""The type of a display that is a change of a widget on its way to the notebook."""
_OF_THE_PROCESS = frozenset(("comm", "log", "keys", "_model_id", "_property_lock", "_states_to_send", "_holding_sync"))


def _widgets() -> Any:
    return importlib.import_module("ipywidgets.widgets.widget")


def is_widget(obj: object) -> bool:
    """Return whether `obj` is a widget of ipywidgets."""
    module = sys.modules.get("ipywidgets.widgets.widget")
    return module is not None and issubclass(type(obj), module.Widget)  # an object may not want to be looked at


def reduced_widget(obj: Any) -> Any:
    """Return how a widget reduces: to what stands for it in the other process."""
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
    """Return the widget of that id: the notebook's own, or what stands for it here."""
    found = _widgets()._instances.get(model_id)
    if type(found) is kind:
        return found
    made = kind.__new__(kind)
    made._model_id = model_id
    return made


def _set_state(widget: Any, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    if widget.comm is not None and not isinstance(widget.comm, _Line):
        return  # the notebook's own has been told of each change
    values, attributes = state
    widget._trait_values.update(values)
    vars(widget).update(attributes)
    if widget.comm is None and _is_engine():
        widget.comm = _Line(widget._model_id)
    elif widget.comm is None:  # the cell has made it
        widget._model_id = None
        widget.open()


def _is_engine() -> bool:
    return "JUPYTER_DTRAIN_RANK" in os.environ


class _Line:
    """In the place of a widget's comm on an engine."""

    def __init__(self, comm_id: str) -> None:
        self.comm_id = comm_id

    def send(self, data: dict[str, Any], metadata: Any = None, buffers: Any = None) -> None:
        """Send what the widget tells: changes go on, what is for the browser's eyes alone does not."""
        del metadata
        if data.get("method") != "update":
            return
        from IPython.display import publish_display_data

        coded = [base64.b64encode(bytes(buffer)).decode() for buffer in buffers or ()]
        content = {"id": self.comm_id, "state": data["state"], "paths": data.get("buffer_paths", []), "buffers": coded}
        publish_display_data({UPDATE: content})

    def on_msg(self, _callback: Any) -> None:
        """Nobody is there who would tell the widget anything."""

    on_close = on_msg

    def close(self, *_: Any, **__: Any) -> None:
        """Leave the notebook's own open."""


def handle(content: dict[str, Any]) -> None:
    """Change a widget of the notebook as the cell has changed what stands for it."""
    widgets = _widgets()
    widget: Any = widgets._instances.get(content["id"])
    if widget is None:  # closed
        return
    state = content["state"]
    widgets._put_buffers(state, content["paths"], [base64.b64decode(buffer) for buffer in content["buffers"]])
    if state.get("msg_id"):  # an `Output` that takes what is shown from here on
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
    """Widgets reduce to what stands for them; their updates travel as displays."""

    displays: ClassVar = {UPDATE: handle}

    def reduce(self, obj: Any) -> Any:
        """Return how a widget reduces."""
        return reduced_widget(obj)

    def is_found_by_id(self, obj: object) -> bool:
        """Return whether it is a widget."""
        return is_widget(obj)


INTEGRATION = IpyWidgets()
