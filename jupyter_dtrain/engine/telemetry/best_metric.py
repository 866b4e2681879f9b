"""The best value of a metric so far (``--best``), so that a snapshot has the weights that reach it.

The ranks watch the metric themselves: until the kernel could ask for a snapshot, the weights would have changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import torch

from ...options import Metric


class Best:
    """Follows one metric on one rank.

    Attributes
    ----------
    value : float, optional
        The best so far.
    is_new : bool
        Whether there is no snapshot of it yet.
    """

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._before: object = None
        self._given_up = False
        self.value: float | None = None
        self.is_new = False

    @property
    def name(self) -> str:
        """The name of the metric."""
        return self._metric.name

    def start(self, namespace: Mapping[str, Any]) -> None:
        """Note that the cell begins: a value in `namespace` is from another run, or was seen before."""
        self._before = namespace.get(self.name)

    def look(self, namespace: Mapping[str, Any]) -> None:
        """Read the value of the cell's own variable."""
        self.note(self.found_in(namespace))

    def found_in(self, namespace: Mapping[str, Any]) -> float | None:
        """Return the value of the cell's own variable, if it has set it to a number."""
        found = namespace.get(self.name)
        return None if found is self._before else _number(found)

    def number_in(self, namespace: Mapping[str, Any]) -> float | None:
        """Return the number that the variable has, whatever has set it."""
        return _number(namespace.get(self.name))

    def note(self, value: object) -> None:
        """Note a value, if it is a number."""
        number = _number(value)
        if number is None or self._given_up or math.isnan(number):
            return
        if self.value is None or self._metric.is_better(number, self.value):
            self.value, self.is_new = number, True

    def give_up(self) -> None:
        """Stop following the metric."""
        self._given_up, self.is_new = True, False

    def state_dict(self) -> float | None:
        """Return the state from which another process resumes."""
        return self.value

    def load_state_dict(self, state: float | None) -> None:
        """Resume from a :meth:`state_dict`."""
        self.value = state


def _number(value: object) -> float | None:
    if type(value) is torch.Tensor and value.numel() == 1:
        return float(value.detach())  # of a loss that is still in its graph PyTorch would warn, at the user's line
    return float(value) if isinstance(value, Real) else None
