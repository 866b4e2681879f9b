"""Graphs of one stream: what cannot be read takes nothing along that has nothing to do with it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from jupyter_dtrain.analysis.code_objects import installed_folders
from jupyter_dtrain.serialization.partial_reader import Pieces, UnreadableError
from jupyter_dtrain.serialization.pickler import Packer


def fails(*_: Any) -> None:
    raise OSError("nobody is there")


class Refusing:
    """Can be written and not be read."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __reduce__(self) -> Any:
        return fails, self.parts

    __reduce__.__code__ = __reduce__.__code__.replace(
        co_filename=f"{installed_folders()[0]}refusing.py"
    )  # of a class of the user's the parts go


def there_and_back(*graphs: Any) -> list[Any]:
    """Return what comes back of each, or why it does not."""
    packer = Packer(namespace={})
    for graph in graphs:
        packer.dump(graph)
    pieces = Pieces(packer.packed(), namespace={})
    return [read(pieces) for _ in graphs]


def read(pieces: Pieces) -> Any:
    try:
        return pieces.read()
    except UnreadableError as error:
        return str(error)


REASON = "OSError: nobody is there"
IN_COMMON = "it has something in common with what cannot be read"


def test_what_comes_before_and_behind_is_there():
    assert there_and_back(["a"], Refusing(), ["b", "c"], {"d": 1}) == [["a"], REASON, ["b", "c"], {"d": 1}]
    assert there_and_back(Refusing(), Refusing(["x"]), ["b"], Refusing(), "c") == [REASON, REASON, ["b"], REASON, "c"]


def test_what_is_shared_stays_shared():
    weight = torch.arange(3.0)
    first, shared = {"weight": weight}, ["both"]
    before, reason, middle, again, behind = there_and_back(
        [first, shared], ["of its own", Refusing("and more", shared)], [shared, "third"], Refusing(first), [first, weight]
    )
    assert (reason, again) == (REASON, REASON)
    assert middle == [["both"], "third"]
    assert middle[0] is before[1]
    assert behind[0] is before[0]
    assert behind[1].data_ptr() == before[0]["weight"].data_ptr()
    assert behind[1].tolist() == [0.0, 1.0, 2.0]


def test_what_has_parts_of_it_cannot_be_read_either():
    inside = {"made": "before it failed"}
    with_it = [inside]
    assert there_and_back([inside, Refusing()], with_it, ["alone"], [with_it], ["alone too"]) == [
        REASON,
        IN_COMMON,
        ["alone"],
        IN_COMMON,
        ["alone too"],
    ]


def test_names_and_texts_that_it_has_too_are_no_parts_of_it():
    layer = torch.nn.Linear(2, 1)
    before, reason, behind = there_and_back(["weight"], ["weight", torch.nn.Linear(1, 1), Refusing()], ["weight", "bias", layer])
    assert (before, reason) == (["weight"], REASON)
    assert behind[:2] == ["weight", "bias"]
    assert torch.equal(behind[2].weight, layer.weight)


@pytest.mark.parametrize("number", [1, 300, 70_000])
def test_however_many_objects_there_are(number):
    many: list[Any] = [[index] for index in range(number)]
    first, reason, last = there_and_back(many, [*([index] for index in range(number)), Refusing()], [many[-1], ["new"]])
    assert reason == REASON
    assert last == [[number - 1], ["new"]]
    assert last[0] is first[-1]
