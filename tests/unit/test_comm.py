"""What goes to the front end as JSON, and over which manager of comms."""

import json
import math
import types
from typing import Any

import comm
import pytest

from jupyter_dtrain.notebook import comm_targets
from jupyter_dtrain.notebook.comm import _json

VALUES = [
    [0.5, 1.5],
    [0.5, None, 1.5],
    [1e308, 1e308],  # finite, and their sum is not
    [10**400, 1],
    [],
    ["a", "b"],
    [{"value": [1, 2.5, None]}, {"text": "nan"}],
]


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_what_json_can_say_stays_as_it_is(value):
    assert _json({"key": value}) == {"key": value}


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("before", [[1.0, 2.0], [1e308, 1e308], [None], ["a"], [math.inf, -math.inf]], ids=str)
def test_a_number_that_is_not_finite_is_nothing_wherever_it_stands(before, number):
    column = [*before, number, 3.0]
    found = _json([{"column": column}, number, [column, [number]]])
    expected = [None if isinstance(value, float) and not math.isfinite(value) else value for value in column]
    assert found == [{"column": expected}, None, [expected, [None]]]
    json.dumps(found, allow_nan=False)


class OldKernel:
    """A kernel before ipykernel 6.18, of whose manager the package `comm` does not know."""

    def __init__(self):
        self.comm_manager: Any = comm.base_comm.CommManager()


@pytest.mark.parametrize("kernel", [OldKernel(), None], ids=["an old kernel", "no kernel"])
def test_comm_targets_are_those_of_the_kernel_where_there_is_one(monkeypatch, kernel):
    shell = types.SimpleNamespace(**({} if kernel is None else {"kernel": kernel}))
    monkeypatch.setattr(comm_targets, "get_ipython", lambda: shell)
    of_the_package: Any = comm.base_comm.CommManager()
    monkeypatch.setattr(comm, "get_comm_manager", lambda: of_the_package)
    serving = of_the_package if kernel is None else kernel.comm_manager
    opened = []
    targets = {"one": lambda *of: opened.append(of), "another": lambda *of: opened.append(of)}
    comm_targets.register(targets)
    assert serving.targets == targets
    serving.comm_open(None, None, message := {"content": {"comm_id": "1", "target_name": "one"}})
    assert opened == [(serving.comms["1"], message)]
    comm_targets.forget("1")
    assert serving.comms == {}
    serving.register_target("another", print)  # by the extension, loaded anew
    comm_targets.unregister(targets)
    assert serving.targets == {"another": print}
    assert serving is of_the_package or of_the_package.targets == {}
