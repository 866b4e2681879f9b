"""Parse ``--search`` and the ranges of ``--vary``.

They are matched by regular expressions and never evaluated, unlike the expressions of ``--vary``. Every range starts with its kind, as
``0..1`` without one might mean two integers or all numbers between them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from typing import Literal, get_args

from .errors import UsageError

SearchKind = Literal["random", "asha"]
RangeKind = Literal["uniform", "log", "int", "logint"]
_NUMBER = r"[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
_EXAMPLES = "log:1e-4..1e-1, uniform:0..0.5, int:16..128 or logint:16..1024, with a step as in int:16..128:16"
_SIGNIFICANT = 4


@dataclass(frozen=True, kw_only=True)
class Search:
    """How the values of trials are chosen, and whether poor trials are stopped early.

    Attributes
    ----------
    kind : {"random", "asha"}
        ``random`` runs each trial to its end. ``asha`` stops poor ones by asynchronous successive halving (Li et al., 2020,
        https://arxiv.org/abs/1810.05934).
    num_trials : int
        Number of trials.
    seed : int
        Seed of the values: equal seeds give equal trials.
    min_resource : int
        For ``asha``: number of values of the metric that a trial has before it may be stopped. The next decisions are after
        ``min_resource * reduction_factor``, ``min_resource * reduction_factor**2``, … values.
    reduction_factor : int
        For ``asha``: one of so many trials continues each time.
    """

    kind: SearchKind
    num_trials: int
    seed: int = 0
    min_resource: int = 1
    reduction_factor: int = 3

    def __post_init__(self) -> None:
        for name, least in (("num_trials", 1), ("seed", 0), ("min_resource", 1), ("reduction_factor", 2)):
            if (value := getattr(self, name)) < least:
                what = "the number of trials" if name == "num_trials" else name
                raise UsageError(f"--search {self}: {what} is {value}; give a whole number from {least} up.")

    def __str__(self) -> str:
        given = [f"{one.name}={getattr(self, one.name)}" for one in fields(self)[2:] if one.name == "seed" or self.prunes]
        return ",".join([f"{self.kind}:{self.num_trials}", *given])

    @property
    def prunes(self) -> bool:
        """Whether poor trials are stopped early."""
        return self.kind == "asha"

    @classmethod
    def parse(cls, text: str) -> Search:
        """Return the search for ``random:20``, ``asha:27`` or ``asha:27,seed=1,min_resource=2``; raise a `UsageError` for other texts."""
        first, *rest = (part.strip() for part in text.split(","))
        found = re.fullmatch(r"(\w+)\s*:\s*(\d+)", first)
        if found is None or found[1] not in get_args(SearchKind):
            raise UsageError(f"--search {text}: give KIND:TRIALS, such as random:20 or asha:27.")
        known = {one.name for one in fields(cls)[2:] if one.name == "seed" or found[1] == "asha"}
        given: dict[str, int] = {}
        for part in rest:
            setting = re.fullmatch(r"(\w+)\s*=\s*(\d+)", part)
            if setting is None or setting[1] not in known or setting[1] in given:
                names = ", ".join(f"{one.name}={one.default}" for one in fields(cls)[2:] if one.name in known)
                raise UsageError(f"--search {text}: {part!r} is not understood; after {first}, give {names} (the defaults).")
            given[setting[1]] = int(setting[2])
        return cls(kind=found[1], num_trials=int(found[2]), **given)  # type: ignore[arg-type]  # one of them


@dataclass(frozen=True, kw_only=True)
class Range:
    """A closed interval of numbers, from which a search samples.

    Attributes
    ----------
    kind : {"uniform", "log", "int", "logint"}
        Floats or integers, sampled uniformly or log-uniformly.
    low, high : float
        Bounds, which are integers for integer kinds.
    step : float, optional
        Only `low` plus multiples of it; for ``uniform`` and ``int``.
    """

    kind: RangeKind
    low: float
    high: float
    step: float | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the numbers are integers."""
        return self.kind in ("int", "logint")

    @property
    def is_log(self) -> bool:
        """Whether the logarithms are sampled uniformly."""
        return self.kind in ("log", "logint")

    @classmethod
    def parse(cls, text: str, given: str) -> Range | None:
        """Return the range for a text such as ``log:1e-4..1e-1``; ``None`` for other texts, which are expressions for values.

        Parameters
        ----------
        text : str
        given : str
            The option, for error messages.

        Raises
        ------
        UsageError
            The text looks like a range, but is malformed.
        """
        begun = re.match(r"\s*([^\W\d]\w*)\s*:(?!=)", text)
        if begun is None or begun[1] == "lambda":
            if re.fullmatch(rf"\s*{_NUMBER}\s*\.\.\s*{_NUMBER}\s*", text):
                raise UsageError(f"{given}: say what kind of range it is: {_EXAMPLES}.")
            return None
        found = re.fullmatch(rf"\s*(\w+)\s*:\s*({_NUMBER})\s*\.\.\s*({_NUMBER})(?:\s*:\s*({_NUMBER}))?\s*", text)
        if found is None or found[1] not in get_args(RangeKind):
            raise UsageError(f"{given}: this is no range. Write KIND:LOW..HIGH: {_EXAMPLES}.")
        is_whole = found[1] in ("int", "logint")
        numbers = [None if number is None else _number(number, is_whole, given) for number in found.groups()[1:]]
        low, high, step = numbers
        assert low is not None and high is not None
        if not low < high:
            raise UsageError(f"{given}: the lower end comes first, and must be less than the upper one.")
        if found[1] in ("log", "logint") and low <= 0:
            raise UsageError(f"{given}: a logarithmic range begins above 0.")
        if step is not None and (found[1] in ("log", "logint") or step <= 0):
            raise UsageError(f"{given}: only uniform and int have a step, and it is more than 0.")
        if step is not None:  # numbers above the last step are never sampled
            high = low + math.floor((high - low) / step * (1 + 1e-12)) * step
        return cls(kind=found[1], low=low, high=high, step=step)  # type: ignore[arg-type]  # one of them

    def numbers(self, most: int) -> list[float] | None:
        """Return all numbers of the range if they are sampled uniformly and at most `most`, else ``None``."""
        step = 1 if self.kind == "int" and self.step is None else self.step
        if self.is_log or step is None or (count := round((self.high - self.low) / step) + 1) > most:
            return None
        return [self.shown(self.low + number * step) for number in range(count)]

    def shown(self, value: float) -> float:
        """Return a sampled value rounded to few digits, so that the trial uses the same number that is shown and recorded."""
        if self.is_whole:
            return int(value)
        is_narrow = self.high - self.low < 0.1 * max(abs(self.low), abs(self.high))
        rounded = float(value) if is_narrow else float(f"{value:.{_SIGNIFICANT}g}")
        return min(max(rounded, self.low), self.high)


def _number(text: str, is_whole: bool, given: str) -> float:
    value = float(text)
    if not math.isfinite(value) or (is_whole and not value.is_integer()):
        raise UsageError(f"{given}: {text} is no {'whole ' if is_whole else ''}number that can be used.")
    return int(value) if is_whole else value
