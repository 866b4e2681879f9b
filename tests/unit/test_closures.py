"""Functions that share a variable share it on an engine, and when they are home again."""

from __future__ import annotations

import pytest

PAIR = """
def make():
    count = 0
    def add(number):
        nonlocal count
        count += number
    return add, {second}
add, counted = make()
"""
SECOND = {
    "a function": "(lambda: count)",
    "of a default": "(lambda of=add: count)",
    "one around another": "(lambda: (lambda: count)())",
}
PAIRS = {name: PAIR.format(second=second) for name, second in SECOND.items()}
PAIRS |= {
    "methods": """
def make():
    count = 0
    class Meter:
        def add(self, number):
            nonlocal count
            count += number
        def counted(self):
            return count
    return Meter()
meter = make()
add, counted = meter.add, meter.counted
""",
    "in containers": PAIR.format(second="(lambda: count)")
    + "both = {'add': [add], 'counted': (counted,)}\nadd, counted = both['add'][0], both['counted'][0]\n",
    "in an object": PAIR.format(second="(lambda: count)") + "class Own: pass\nown = Own()\nown.add, own.counted = add, counted\n",
    "that calls itself": """
def make():
    count = 0
    def add(number):
        nonlocal count
        if number:
            count += 1
            add(number - 1)
    return add, lambda: count
add, counted = make()
""",
    "a generator's": """
def make():
    count = 0
    def add(number):
        nonlocal count
        for count in range(count + 1, count + number + 1):
            pass
    def counted():
        return next(value for value in [count])
    return add, counted
add, counted = make()
""",
    "of a decorator": """
def counts(function):
    calls = 0
    def call(*args):
        nonlocal calls
        calls += args[0]
        return function(*args)
    call.calls = lambda: calls
    return call
@counts
def add(number): pass
counted = add.calls
""",
    "three of them": """
def make():
    count = 0
    def reset():
        nonlocal count
        count = 0
    def add(number):
        nonlocal count
        count += number
    return reset, add, lambda: count
reset, add, counted = make()
add(5)
reset()
""",
}


@pytest.mark.parametrize("name", PAIRS)
def test_what_one_sets_the_other_sees(name, notebook):
    notebook.plain(PAIRS[name])
    assert notebook.distribute("add(3)\ncounted()") == 3
    notebook.plain("add(2)\nhome = counted()")
    assert notebook.distribute("add(4)\nhome, counted()") == (5, 9)


def test_what_the_cell_makes_shares_its_variables_at_home(notebook):
    notebook.distribute(PAIRS["a function"] + "\nadd(3)")
    notebook.plain("add(2)\nhome = counted()")
    assert notebook.distribute("home") == 5


def test_variables_of_two_calls_are_two(notebook):
    notebook.plain(PAIRS["a function"] + "other_add, other_counted = make()")
    assert notebook.distribute("add(3)\nother_add(1)\n(counted(), other_counted())") == (3, 1)
