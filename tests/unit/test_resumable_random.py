"""Random programs of nested statements, each interrupted at random boundaries: what they did is what one run does."""

from __future__ import annotations

import textwrap
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.test_resumable import check

SETUP = """
class Stop(Exception): pass
class Box:
    def __init__(self): self.n = 0
    def walk(self, k):
        for i in range(k):
            self.n += 1
            t(('walk', self.n))
            if self.n % 3 == 0: return i
        else:
            t('all')
        return -1
box = Box()
n = 0
def leaf(k):
    for i in range(k): t(('leaf', i))
    return k
@torch.no_grad()
def count(k):
    global n
    while k > 0:
        k -= 1
        n += 1
        t(n)
        leaf(1)
    return n
def numbers(k):
    for i in range(k): yield i
"""

ITERABLES = [
    "range(2)", "[1, 2]",
    "'ab'", "enumerate('ab')", "zip([1, 2], 'ab')", "{1: 2, 3: 4}", "{1: 2}.items()", "numbers(2)", "reversed([1, 2])",
    "map(str, [1, 2])", "torch.arange(2).tolist()", "(i * i for i in range(2))", "[leaf(1), 2]",
]  # fmt: skip
SIMPLE = [
    "t(v)", "n += 1", "v = leaf(1)", "v, w = leaf(2), 1", "box.walk(2)", "count(1)", "t(count(2))", "x = [leaf(1) for _ in range(2)]",
    "v = box.walk(1) + 1", "t((n, leaf(1)))", "import math", "v: int = leaf(1)", "pass", "w = lambda: leaf(1); w()",
]  # fmt: skip


@st.composite
def block(draw: Any, depth: int, in_loop: bool, in_function: bool) -> Any:
    """Draw some statements."""
    lines = [draw(statement(depth, in_loop, in_function)) for _ in range(draw(st.integers(1, 3)))]
    return "\n".join(lines)


@st.composite
def statement(draw: Any, depth: int, in_loop: bool, in_function: bool) -> Any:
    """Draw a statement with at most `depth` levels inside."""
    kinds = ["simple", "simple", "call"]
    kinds += ["for", "for", "while", "if", "with", "try", "function"] if depth else []
    kinds += ["break", "continue"] if in_loop else []
    kinds += ["return"] if in_function else []

    def inner(loop: bool = in_loop, function: bool = in_function) -> str:
        return textwrap.indent(draw(block(depth - 1, loop, function)), "    ")

    match draw(st.sampled_from(kinds)):
        case "simple":
            return draw(st.sampled_from(SIMPLE))
        case "call":
            return f"t({draw(st.integers(0, 99))})"
        case "for":
            target = draw(st.sampled_from(["v", "w", "_"]))
            text = f"for {target} in {draw(st.sampled_from(ITERABLES))}:\n{inner(loop=True)}"
            return text + (f"\nelse:\n{inner()}" if draw(st.booleans()) else "")
        case "while":
            name = f"k{draw(st.integers(0, 99))}_{depth}"
            test = draw(st.sampled_from([f"{name} < 2", f"leaf(1) and {name} < 2", f"(u := {name}) < 2"]))
            return f"{name} = 0\nwhile {test}:\n    {name} += 1\n{inner(loop=True)}" + (
                f"\nelse:\n{inner()}" if draw(st.booleans()) else ""
            )
        case "if":
            test = draw(st.sampled_from(["n % 2", "leaf(1)", "box.n > 2", "not v", "count(1) % 2 and n"]))
            return f"if {test}:\n{inner()}\nelse:\n{inner()}"
        case "with":
            return f"with {draw(st.sampled_from(['torch.no_grad()', 'suppress(Stop)', 'contextlib.nullcontext(3) as u']))}:\n{inner()}"
        case "try":
            end = draw(st.sampled_from(["", "    raise Stop\n", "    if n % 2: raise Stop\n"]))
            text = f"try:\n{inner()}\n{end}except Stop:\n    t('stopped')\n"
            return text + draw(st.sampled_from(["else:\n    leaf(1)", "finally:\n    t('finally')", "finally:\n    leaf(1)"]))
        case "function":
            name = f"f{draw(st.integers(0, 99))}_{depth}"
            body = "    v = w = 0\n    global n\n" + inner(loop=False, function=True)
            return f"def {name}(p=1):\n{body}\n    return p\nt({name}(2))\nv = {name}()"
        case "return":
            return "return v"
        case kind:
            return kind


@st.composite
def program(draw: Any) -> Any:
    """Draw a program."""
    return "v = w = 0\n" + "\n".join(draw(statement(3, False, False)) for _ in range(draw(st.integers(1, 4))))


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(program())
def test_random_programs(text):
    check(text, SETUP, most=4)
