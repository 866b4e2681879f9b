"""What goes to the front end as JSON."""

import json
import math

import pytest

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
