"""Progress bars of tqdm's: one that has shown all that it will is sent as one that shows nothing any more, with all that it says."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

_ON_SCREEN = frozenset({"container", "disp", "displayed", "dynamic_ncols", "fp", "pos", "sp"})
"""What a bar shows itself by, which is the process's that made it."""
_SAID = frozenset(
    """ascii bar_format colour delay desc dynamic_miniters gui initial last_print_n last_print_t leave lock_args maxinterval
    mininterval miniters n ncols nrows postfix smoothing start_t total unit unit_divisor unit_scale
    _ema_dn _ema_dt _ema_miniters _time""".split()  # noqa: SIM905
)
"""What all bars of tqdm's say, whatever they show themselves by."""


def is_progress_bar(obj: object) -> bool:
    """Return whether `obj` is a bar of tqdm's, or of a class made of one."""
    std = sys.modules.get("tqdm.std")  # nothing is one before it is imported
    return std is not None and isinstance(obj, std.tqdm)


def reduced_bar(obj: Any) -> Any:
    """Return how `obj` is written where it is a progress bar, ``NotImplemented`` otherwise."""
    return bar_at_rest(obj) if is_progress_bar(obj) else NotImplemented


def bar_at_rest(bar: Any) -> tuple[Any, ...]:
    """Return how a progress bar reduces that has shown all that it will: as one that shows nothing any more.

    What it goes over is left out where it is an iterator: that has come to its end, or belongs to a process that does.
    """
    state = {name: value for name, value in vars(bar).items() if name not in _ON_SCREEN}
    if type(bar).__module__.startswith("tqdm."):  # those of other classes may hold what is the user's own
        state = {name: value for name, value in state.items() if name in _SAID}
    iterable = getattr(bar, "iterable", None)
    return _bar, (type(bar), {**state, "iterable": None if isinstance(iterable, Iterator) else iterable})


def _bar(kind: type, state: dict[str, Any]) -> Any:
    """Return a closed bar. Its class is not called: tqdm.auto's walks over what it is given at once, and a loader then draws a seed."""
    bar: Any = object.__new__(kind)
    vars(bar).update(state, disable=True, pos=0, fp=sys.stderr, dynamic_ncols=False, disp=_show_nothing)
    return bar


def _show_nothing(*_: object, **__: object) -> None:
    pass
