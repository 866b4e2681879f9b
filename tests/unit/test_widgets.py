"""Widgets of the notebook that a cell updates: what is set on an engine is set in the notebook's own, and seen by its observers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ipywidgets
import pytest
from ipywidgets.widgets import widget as widgets

from jupyter_dtrain.integrations.ipywidgets import UPDATE, handle
from tests.unit.test_pickling import sent


@pytest.fixture
def engine(monkeypatch) -> Iterator[Any]:
    """A function that returns what stands for widgets on an engine; what it tells is delivered when the test leaves the engine."""
    told: list[Any] = []
    notebooks: dict[str, Any] = {}
    monkeypatch.setattr("IPython.display.publish_display_data", lambda data: told.append(data[UPDATE]))

    def arrive(value: Any) -> Any:
        notebooks.update(widgets._instances)
        monkeypatch.setenv("JUPYTER_DTRAIN_RANK", "0")
        widgets._instances.clear()
        return sent(value)

    def deliver() -> int:
        monkeypatch.delenv("JUPYTER_DTRAIN_RANK")
        widgets._instances.clear()
        widgets._instances.update(notebooks)
        for content in told:
            handle(content)
        return len(told)

    arrive.deliver = deliver  # type: ignore[attr-defined]
    before = dict(widgets._instances)
    yield arrive
    widgets._instances.clear()
    widgets._instances.update(before)


def test_what_the_cell_sets_is_set_in_the_notebook(engine):
    label, bar = ipywidgets.Label("start"), ipywidgets.FloatProgress(max=5)
    box, seen = ipywidgets.VBox([label, bar]), []
    label.observe(lambda change: seen.append(change["new"]), "value")
    there = engine([label, bar, box])
    assert [type(one) for one in there] == [ipywidgets.Label, ipywidgets.FloatProgress, ipywidgets.VBox]
    for number in range(3):
        there[0].value = f"{number}"
        there[1].value += 1
    there[1].bar_style = "success"
    there[1].style.bar_color = "red"
    there[2].children[0].value = "in the box"
    there[2].children = (there[1], there[0])
    assert engine.deliver() == 10
    assert (label.value, bar.value, bar.bar_style, bar.style.bar_color) == ("in the box", 3.0, "success", "red")
    assert seen == ["0", "1", "2", "in the box"]
    assert box.children == (bar, label)


@pytest.mark.parametrize(
    ("widget", "name", "value"),
    [
        (ipywidgets.IntSlider(5, max=9), "max", 9),
        (ipywidgets.Dropdown(options=["a", "b"], value="b"), "value", "b"),
        (ipywidgets.SelectMultiple(options=["a", "b"], value=["a"]), "value", ("a",)),
        (ipywidgets.Text("name"), "value", "name"),
        (ipywidgets.Image(value=b"123"), "value", b"123"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_the_notebook_has_set_is_read_there(engine, widget, name, value):
    there = engine(widget)
    assert getattr(there, name) == value
    assert engine.deliver() == 0


def test_bytes_and_choices_come_back(engine):
    image, choice = ipywidgets.Image(value=b"123"), ipywidgets.Dropdown(options=["a", "b"], value="b")
    there = engine((image, choice))
    there[0].value, there[1].value = b"456", "a"
    engine.deliver()
    assert (image.value, choice.value) == (b"456", "a")


def test_a_button_with_callbacks_goes_without_them(engine):
    button = ipywidgets.Button(description="stop")
    button.on_click(lambda _: None)
    assert engine(button).description == "stop"
    engine.deliver()


def test_a_widget_that_comes_back_is_the_notebooks_own(engine):
    label = ipywidgets.Label("start")
    engine([])
    engine.deliver()
    assert sent({"label": label})["label"] is label
