"""What each process has one of, under whatever name: the generators that modules draw from, the environment, matplotlib's parameters.

``from random import choice`` and ``from numpy.random import randn`` are methods of such generators. A copy would go on by itself, and what
seeds the module would not seed it; nor would a figure know what the cell sets in a copy of ``rcParams``.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
from typing import Any

import numpy as np
import torch


def reduced_own(obj: Any) -> Any:
    """Return how `obj` reduces if it is one of these: as that of the process that reads it; else ``NotImplemented``."""
    if type(obj).__name__ not in _KINDS:  # nearly everything is asked
        return NotImplemented
    return next(((_own, (name,)) for name, own in _all().items() if obj is own), NotImplemented)


def _own(name: str) -> Any:
    if name == _PARAMETERS:
        importlib.import_module("matplotlib")
    return _all()[name]


def _all() -> dict[str, Any]:
    python: Any = random.random  # which is the same method in a run, as `random.seed` is not
    numpy: Any = np.random.random
    found = {"random": python.__self__, "numpy.random": numpy.__self__, "torch": torch.default_generator, "os.environ": os.environ}
    matplotlib = sys.modules.get("matplotlib")
    return found if matplotlib is None else {**found, _PARAMETERS: matplotlib.rcParams}


_PARAMETERS = "matplotlib.rcParams"
_KINDS = frozenset({"Random", "RandomState", "Generator", "_Environ", "RcParams"})
