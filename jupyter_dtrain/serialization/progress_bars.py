"""tqdm progress bars: a finished bar is pickled as a closed bar with its counts and settings."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

_ON_SCREEN = frozenset({"container", "disp", "displayed", "dynamic_ncols", "fp", "pos", "sp"})
"""Attributes of how a bar is displayed, which belong to the process that made it."""
_SAID = frozenset(
    """ascii bar_format colour delay desc dynamic_miniters gui initial last_print_n last_print_t leave lock_args maxinterval
    mininterval miniters n ncols nrows postfix smoothing start_t total unit unit_divisor unit_scale
    _ema_dn _ema_dt _ema_miniters _time""".split()  # noqa: SIM905
)
"""Attributes that all tqdm bars have, however they are displayed."""


def is_progress_bar(obj: object) -> bool:
    """Return whether `obj` is a tqdm bar, of any subclass."""
    std = sys.modules.get("tqdm.std")  # without this import there are no bars
    return std is not None and isinstance(obj, std.tqdm)


def reduced_bar(obj: Any) -> Any:
    """Return the reduce value of a progress bar, ``NotImplemented`` for all else."""
    return bar_at_rest(obj) if is_progress_bar(obj) else NotImplemented


def bar_at_rest(bar: Any) -> tuple[Any, ...]:
    """Return the reduce value of a finished progress bar: a closed bar.

    Its iterable is left out if it is an iterator: that is exhausted, or belongs to the other process.
    """
    state = {name: value for name, value in vars(bar).items() if name not in _ON_SCREEN}
    if type(bar).__module__.startswith("tqdm."):  # subclasses outside tqdm may have attributes of the user's
        state = {name: value for name, value in state.items() if name in _SAID}
    iterable = getattr(bar, "iterable", None)
    return _bar, (type(bar), {**state, "iterable": None if isinstance(iterable, Iterator) else iterable})


def _bar(kind: type, state: dict[str, Any]) -> Any:
    """Return a closed bar without calling its class: tqdm.auto would iterate over its argument, for which a loader draws a seed."""
    bar: Any = object.__new__(kind)
    vars(bar).update(state, disable=True, pos=0, fp=sys.stderr, dynamic_ncols=False, disp=_show_nothing)
    return bar


def _show_nothing(*_: object, **__: object) -> None:
    pass
