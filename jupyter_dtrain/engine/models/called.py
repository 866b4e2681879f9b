"""What is known of a module that a cell calls: one record, which is looked up at each call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Called:
    """What is known of a module that the cell calls.

    Attributes
    ----------
    is_model : bool, optional
        Whether it has parameters; ``None``: nobody has asked.
    is_lazy : bool
        It may have parameters without a shape yet (``nn.LazyLinear``).
    is_open : bool
    takes_batch_for_sequence : bool
        It is a layer of PyTorch's that goes along the batch: it needs all of it.
    num_hooks : int
        That had been registered when it was looked through for hooks.
    normalizes : bool
        It may have changed its statistics since these were taken.
    results : dict
        The dims of the batch in what it returns.
    drawn_with : list, optional
        What it may draw with beside PyTorch's own generators; ``None``: nobody has asked.
    marked : dict of bool to list of int
        Which of its arguments, counted as leaves, it lets require gradients (``x.requires_grad_()``), in training and in evaluation.
    """

    is_model: bool | None = None
    is_lazy: bool = True
    is_open: bool = False
    takes_batch_for_sequence: bool = False
    num_hooks: int = -1
    normalizes: bool = False
    results: dict[Any, Any] = field(default_factory=dict)
    drawn_with: list[Any] | None = None
    marked: dict[bool, list[int]] = field(default_factory=dict)
