"""The notebook's functions, each with the text that it was made from."""

from __future__ import annotations

from jupyter_dtrain.analysis.code_objects import keep_text
from jupyter_dtrain.analysis.definitions import definitions_of

CELL = """import functools
SIZE = 3

@functools.lru_cache
def helper(x):
    return x + SIZE


class Net:
    width = 4

    def forward(self, x):
        return (lambda y: helper(y))(x)


scale = lambda x: x * 2
"""


def made(text, name="<cell-definitions>", module="__main__"):
    keep_text(name, text)
    namespace = {"__name__": module}
    exec(compile(text, name, "exec"), namespace)
    return namespace


def test_functions_are_there_by_the_statements_that_make_them():
    names = made(CELL)
    found = definitions_of([names["Net"].forward, names["helper"].__wrapped__, names["scale"], 3])
    assert list(found) == ["Net", "helper", "scale"]
    assert found["helper"].startswith("@functools.lru_cache\ndef helper(x):")
    assert found["Net"].startswith("class Net:\n    width = 4\n")
    assert found["scale"] == "scale = lambda x: x * 2\n"


def test_those_of_a_module_beside_the_notebook_say_so_and_a_librarys_are_left_out():
    names = made("def step(x):\n    return x\n", "/home/user/training.py", "training")
    assert definitions_of([names["step"], keep_text.__get__]) == {"training.step": "def step(x):\n    return x\n"}
