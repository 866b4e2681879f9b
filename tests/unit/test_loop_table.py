"""What `--preview` says of loops: in which of them a run can go on."""

from __future__ import annotations

import ast
from typing import Any

from jupyter_dtrain.analysis.loop_report import loop_rows, loop_table
from jupyter_dtrain.engine.cell import run_cell

NOTEBOOK = """
import torch
def batches(loader):
    for x in loader: yield x
def epoch(model, loader):
    for x in batches(loader):
        for layer in model: step(layer, x)
def step(layer, x):
    while x: x -= 1
def score(x):
    for row in x: pass
    return x
def unused():
    for i in range(3): pass
class Trainer:
    def fit(self, n):
        for e in range(n): epoch([], [])
trainer = Trainer()
"""
CELL = """
for e in range(3):
    epoch(model, loader)
    scores = [score(x) for x in loader]
    try:
        for i, (x, y) in enumerate(zip(loader, range(1000000), [1, 2, 3], "abcdefgh")): pass
    except ValueError:
        for retry in range(3): pass
trainer.fit(2)
"""


def test_where_a_cell_can_go_on():
    namespace: dict[str, Any] = {"__name__": "__main__"}
    run_cell(NOTEBOOK, "<notebook>", namespace)
    rows = {(row.where, row.text): row.why_not for row in loop_rows(ast.parse(CELL), namespace)}
    assert rows == {
        ("line 2", "for e in range(3)"): "",
        ("line 6", "for i, (x, y) in enumerate(zip(loader, range(10…"): "",
        ("line 8", "for retry in range(3)"): "in a handler, a finally block, a match statement or a class body",
        ("batches(), line 4", "for x in loader"): "in a generator",
        ("epoch(), line 6", "for x in batches(loader)"): "",
        ("epoch(), line 7", "for layer in model"): "",
        ("step(), line 9", "while x"): "",
        ("score(), line 11", "for row in x"): "called in line 4 inside a list comprehension",
        ("fit(), line 17", "for e in range(n)"): "",
    }


def test_the_table():
    rows = loop_rows(ast.parse("for e in range(3):\n    x = [f(i) for i in e]\ndef f(i):\n    while i: i -= 1"), {})
    assert loop_table(rows) == (
        "Where the cell can resume if an engine is lost:\n"
        "line 1       for e in range(3)  at any iteration\n"
        "f(), line 4  while i            at an outer loop: called in line 2 inside a list comprehension"
    )
    assert loop_table([]) == ""
