"""A notebook on a GPU, and what a cell comes to there: plain, on one engine, on two that share the card."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.notebook.corpus_cells import TOLERANCE, apart, text_apart
from tests.notebook.kernel import Cell, Notebook

LIMIT = 30.0  # seconds until memory of a card is free again
SEEDS = """
import random as _random, numpy as _numpy, torch as _torch
_torch.set_default_dtype(_torch.float64)
_torch.use_deterministic_algorithms(True, warn_only=True)
_torch.manual_seed(0), _numpy.random.seed(0), _random.seed(0)
"""
FORGET = """
_names = globals().setdefault("_names", set(globals()))
for _name in [name for name in globals() if name not in _names and not name.startswith("_")]:
    del globals()[_name]
"""
EXACT = "--rng global --batchnorm global"
"""With which a GPU's engines draw and normalize as one process does."""


@dataclass
class Card:
    """A notebook whose engines compute on `device`: ``"cuda"``, or ``"cpu"`` to try the tests.

    `pids` are the engines' when the last cell was begun.
    """

    notebook: Notebook
    device: str
    pids: list[int] = field(default_factory=list)

    def line(self, engines: int, options: str = EXACT) -> str:
        """Return the first line of a cell."""
        return f"%%distribute --engines {engines} {options}\n"

    def run(self, setup: str, cell: str, compare: str, engines: int = 0, options: str = EXACT) -> dict[str, Any]:
        """Run `setup` plain and `cell` on that many engines, 0 for plain; return what must be the same."""
        self.notebook.run(FORGET + SEEDS)
        self.notebook.run(setup)
        ran = self.notebook.run((self.line(engines, options) if engines else "") + cell)
        found = self.notebook.value(f"__import__('tests.gpu.card', fromlist=['card']).on_cpu((({compare}), {self.random()}))")
        return {"compared": found[0], "random": found[1], "printed": ran.stdout, "result": ran.result or ""}

    def random(self) -> str:
        """Return an expression for what all streams give next."""
        return f"(_torch.rand(3), _torch.rand(3, device={self.device!r}), _numpy.random.rand(3).tolist(), _random.random())"

    def assert_same(self, setup: str, cell: str, compare: str, *, tolerance: float = TOLERANCE, options: str = EXACT) -> dict[str, Any]:
        """Run a cell plain, on one engine and on two, and compare; return what it came to plain."""
        plain = self.run(setup, cell, compare)
        for engines in (1, 2):
            found = self.run(setup, cell, compare, engines, options)
            differs = difference(plain, found, tolerance)
            assert differs is None, f"{engines} engines: {differs}"
        return plain

    def start(self, cell: str, engines: int = 2, options: str = EXACT) -> Cell:
        """Begin a cell on engines."""
        self.pids = self.notebook.engines()
        return self.notebook.start(self.line(engines, options) + cell)


def difference(first: dict[str, Any], second: dict[str, Any], tolerance: float) -> str | None:
    """Return where two runs of a cell differ."""
    for name in ("compared", "random"):
        if found := apart(first[name], second[name], tolerance, name):
            return found
    for name in ("printed", "result"):
        if found := text_apart(first[name], second[name], tolerance):
            return found
    return None


def on_cpu(value: Any) -> Any:
    """Return `value` with copies of its tensors on the CPU. The notebook calls this before it sends what a test compares."""
    import torch
    from torch.utils import _pytree as pytree

    return pytree.tree_map(lambda leaf: leaf.detach().cpu() if isinstance(leaf, torch.Tensor) else leaf, value)


def used_memory() -> int:
    """Return how many bytes of the card are in use, by whatever process."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return total - free


def wait_until(condition: Callable[[], object], what: str, limit: float = LIMIT) -> None:
    """Wait for what no message tells."""
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come in {limit:.0f} s"
        time.sleep(0.1)
