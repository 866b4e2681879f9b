"""What a cell prints and displays is shown once: not again on the way back to where it resumes, and held while that is uncertain."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import IPython
import pytest

from jupyter_dtrain.engine.side_effects.shown_output import Count, Shown


class Publisher:
    def __init__(self) -> None:
        self.shown: list[tuple[str, bool]] = []

    def publish(self, data: dict[str, Any], metadata: Any = None, *, transient: Any = None, update: bool = False) -> None:
        self.shown.append((data["text/plain"], update))


@pytest.fixture
def publisher(monkeypatch) -> Publisher:
    made = Publisher()
    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(display_pub=made))
    return made


def say(publisher: Publisher, number: int) -> None:
    print(f"line {number}")
    sys.stdout.writelines([f"first part of {number}, ", "second\n"])
    publisher.publish({"text/plain": f"display {number}"}, transient={"display_id": "bar"})
    publisher.publish({"text/plain": f"change {number}"}, transient={"display_id": "bar"}, update=True)


def lines(*numbers: int) -> str:
    return "".join(f"line {number}\nfirst part of {number}, second\n" for number in numbers)


def test_output_is_passed_on_and_counted(publisher, capsys):
    shown = Shown()
    with shown.installed():
        for number in range(2):
            say(publisher, number)
    assert shown.count == Count(lines=4, displays=2)
    assert capsys.readouterr().out == lines(0, 1)
    assert publisher.shown == [(f"{what} {number}", what == "change") for number in range(2) for what in ("display", "change")]


def test_output_that_the_notebook_has_is_not_shown_again(publisher, capsys):
    shown = Shown(before=Count(lines=2, displays=1), seen=Count(lines=5, displays=2))
    with shown.installed():
        for number in range(1, 3):  # it has what comes after line 1 and its display, and line 2
            say(publisher, number)
    assert shown.count == Count(lines=6, displays=3)
    assert capsys.readouterr().out == "first part of 2, second\n"
    assert publisher.shown == [("change 1", True), ("display 2", False), ("change 2", True)]


def test_on_the_way_back_nothing_is_shown_or_counted(publisher, capsys):
    shown = Shown()
    with shown.installed():
        shown.is_muted = True
        say(publisher, 0)
        shown.is_muted = False
        say(publisher, 1)
    assert shown.count == Count(lines=2, displays=1)
    assert capsys.readouterr().out == lines(1)
    assert publisher.shown == [("display 1", False), ("change 1", True)]


def test_output_that_may_be_computed_again_is_held(publisher, capsys):
    shown = Shown()
    with shown.installed():
        say(publisher, 0)
        shown.buffer()
        say(publisher, 1)
    assert shown.count == Count(lines=2, displays=1)
    assert capsys.readouterr().out == lines(0)
    assert publisher.shown == [("display 0", False), ("change 0", True)]
    assert "".join(text for kind, text in shown.held if kind == "stdout") == lines(1)
    assert [content for kind, content in shown.held if kind == "display"] == [
        {"data": {"text/plain": "display 1"}, "metadata": {}, "transient": {"display_id": "bar"}, "update": False},
        {"data": {"text/plain": "change 1"}, "metadata": {}, "transient": {"display_id": "bar"}, "update": True},
    ]


def test_afterwards_the_publisher_is_as_before(publisher):
    with Shown().installed():
        assert "publish" in vars(publisher)
    assert "publish" not in vars(publisher)
