"""Which code asks for ids, and the ids that objects of the notebook and of the cell have there."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from jupyter_dtrain.serialization.identities import Identities, found_by_name, ids_of, reference_of


@pytest.mark.parametrize("text", ["kept = id(x)", "map(id, xs)", "x if id(x)==y else z", "key=id", "f(\nid\n)", "print(id==id)"])
def test_code_that_asks_for_ids(text):
    assert ids_of([text], ["pass", text])


@pytest.mark.parametrize(
    "text", ["x.id", "run(id='a')", "id = 5", "grid, ids, valid, _id", "import ctypes\nctypes.c_long.from_address(id(x))"]
)
def test_code_that_asks_for_none(text):
    assert ids_of([text], [text]) == b""


def test_ids_of_the_notebook_and_of_the_cell():
    there, here = [nn.Linear(1, 1), []], [nn.Linear(1, 1), []]
    identities = Identities(ids_of(there, ["id(x)"]))
    assert identities.know(here) is here
    names: dict[str, Any] = {}
    with identities.installed([names, taken := {"id": 5}]):
        asked = names["id"]
        assert [*map(asked, here), asked(None)] == [*map(id, there), id(None)]
        new = nn.Linear(1, 1)
        number = asked(new)
        assert type(number) is int
        assert reference_of(asked(new)) == ("id", new)
        assert number not in {id(new), asked(nn.Linear(1, 1)), asked([])}
        del new
        assert reference_of(number) is None
    assert (names, taken) == ({}, {"id": 5})
    assert found_by_name("builtins", "id") is asked
    assert Identities(b"").know([5]) == [5]
    assert found_by_name("builtins", "id") is None
