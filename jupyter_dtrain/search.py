"""What ``--search`` and the ranges of ``--vary`` say.

Plain data, read by patterns from the text of the line: none of it is run, as the expressions of ``--vary`` are. A kind stands before every
range, as ``0..1`` by itself might be two whole numbers or all between them.
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
        How many are tried.
    seed : int
        Of the values: equal seeds give equal trials.
    min_resource : int
        Of ``asha``: how many values of the metric a trial has before it may be stopped. It is looked at again after
        ``min_resource * reduction_factor``, ``min_resource * reduction_factor**2``, … values.
    reduction_factor : int
        Of ``asha``: one of so many trials goes on each time.
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
        """Return what ``random:20``, ``asha:27`` or ``asha:27,seed=1,min_resource=2`` says; a `UsageError` says what is wrong with it."""
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
    """All numbers between two, both included, of which a search draws some.

    Attributes
    ----------
    kind : {"uniform", "log", "int", "logint"}
        Any number, or whole ones; all equally likely, or their logarithms.
    low, high : float
        Whole ones of whole numbers.
    step : float, optional
        Only `low` and what is a multiple of it above; of ``uniform`` and ``int``.
    """

    kind: RangeKind
    low: float
    high: float
    step: float | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all are whole numbers."""
        return self.kind in ("int", "logint")

    @property
    def is_log(self) -> bool:
        """Whether the logarithms are equally likely."""
        return self.kind in ("log", "logint")

    @classmethod
    def parse(cls, text: str, given: str) -> Range | None:
        """Return what ``log:1e-4..1e-1`` says; ``None``: it is something else, an expression for values.

        Parameters
        ----------
        text : str
        given : str
            What errors call it.

        Raises
        ------
        UsageError
            It is meant as a range, and is none.
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
        if step is not None:  # what is above the last step is never drawn
            high = low + math.floor((high - low) / step * (1 + 1e-12)) * step
        return cls(kind=found[1], low=low, high=high, step=step)  # type: ignore[arg-type]  # one of them

    def numbers(self, most: int) -> list[float] | None:
        """Return all numbers in it if they are equally likely and at most so many, else ``None``."""
        step = 1 if self.kind == "int" and self.step is None else self.step
        if self.is_log or step is None or (count := round((self.high - self.low) / step) + 1) > most:
            return None
        return [self.shown(self.low + number * step) for number in range(count)]

    def shown(self, value: float) -> float:
        """Return a value of this range with few digits, so that what is shown and recorded is the very number that a trial has."""
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
