"""Optuna's samplers and pruners behind what the trials of a cell need of them.

All trials are drawn before the first begins, so which there are depends on the seed alone, and not on how those before have done. A sampler
that learns from them (TPE) would choose others with every number of engines.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..options import Metric
from ..search import Range, Search
from .grid import Axis, Trial, axes_of, check_new

if TYPE_CHECKING:
    import optuna

ATTEMPTS = 20
"""Draws for each trial that is wanted, until it is taken that there are no others."""
MOST_LISTED = 1000
"""Numbers of a range that is drawn from as a list is: each combination of lists is drawn once."""


class Study:
    """The trials of a search, and which of them are poor.

    Parameters
    ----------
    search : Search
    vary : iterable of (str, str)
        Names, each with a range or an expression, as in :func:`.grid.axes_of`.
    namespace : dict
        What expressions refer to.
    metric : Metric, optional
        By which one trial is better than another.

    Attributes
    ----------
    trials : list of Trial
        Each combination of values once; fewer than the search wants where there are no more.

    Raises
    ------
    UsageError
        Optuna is missing, or values cannot be made out.
    """

    def __init__(self, search: Search, vary: Iterable[tuple[str, str]], namespace: dict[str, Any], metric: Metric | None) -> None:
        try:
            import optuna
        except ImportError as error:
            raise UsageError(
                f"--search {search} needs Optuna, which cannot be imported ({error}): `%pip install 'jupyter_dtrain[search]'`, then run "
                "the cell again."
            ) from None
        self._axes = _axes_of(vary, namespace)
        lists = {name: list(range(len(axis))) for name, axis in self._axes.items() if not isinstance(axis, Range)}
        is_grid = len(lists) == len(self._axes)
        with _quiet(optuna):
            self._study = optuna.create_study(
                direction="maximize" if metric is not None and metric.mode == "max" else "minimize",
                sampler=optuna.samplers.GridSampler(lists, seed=search.seed) if is_grid else optuna.samplers.RandomSampler(search.seed),
                pruner=optuna.pruners.SuccessiveHalvingPruner(search.min_resource, search.reduction_factor),
            )
            found = self._drawn(search.num_trials, math.prod(map(len, lists.values())) if is_grid else None)
        self._asked = [asked for asked, _ in found]
        self.trials = [Trial.of(number, chosen) for number, (_, chosen) in enumerate(found, 1)]

    def is_poor(self, number: int, resource: int, value: float) -> bool:
        """Return whether trial `number` is to end, whose metric is `value` at the end of so much training.

        It is compared with the trials of which this was asked before at the same `resource`.
        """
        trial = self._asked[number - 1]
        trial.report(value, resource)
        poor: bool = trial.should_prune()
        return poor

    def _drawn(self, wanted: int, most: int | None) -> list[tuple[optuna.trial.Trial, dict[str, tuple[str, Any]]]]:
        """Return so many trials that differ, or as many as there are, each with its values and how these are shown."""
        space = {name: _distribution(axis) for name, axis in self._axes.items()}
        found: dict[tuple[str, ...], tuple[optuna.trial.Trial, dict[str, tuple[str, Any]]]] = {}
        for _ in range(ATTEMPTS * wanted if most is None else min(wanted, most)):
            asked = self._study.ask(space)
            chosen = {name: _chosen(axis, asked.params[name]) for name, axis in self._axes.items()}
            found.setdefault(tuple(text for text, _ in chosen.values()), (asked, chosen))
            if len(found) == wanted:
                break
        return list(found.values())


def _axes_of(vary: Iterable[tuple[str, str]], namespace: dict[str, Any]) -> Mapping[str, Axis | Range]:
    axes: dict[str, Axis | Range] = {}
    for name, expression in vary:
        check_new(name, axes)
        found = Range.parse(expression, f"--vary {name}={expression}")
        listed = None if found is None else found.numbers(MOST_LISTED)
        if listed is not None:
            axes[name] = [(repr(value), value) for value in listed]
        else:
            axes[name] = axes_of([(name, expression)], namespace)[name] if found is None else found
    return axes


def _distribution(axis: Axis | Range) -> optuna.distributions.BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if not isinstance(axis, Range):
        return CategoricalDistribution(range(len(axis)))  # their places: the values may be any objects
    if axis.is_whole:
        return IntDistribution(int(axis.low), int(axis.high), log=axis.is_log, step=int(axis.step or 1))
    return FloatDistribution(axis.low, axis.high, log=axis.is_log, step=axis.step)


def _chosen(axis: Axis | Range, drawn: Any) -> tuple[str, Any]:
    """Return the value that was drawn, with how it is shown."""
    if not isinstance(axis, Range):
        place: int = drawn
        return axis[place]
    value = axis.shown(drawn)
    return repr(value), value


@contextmanager
def _quiet(library: Any) -> Iterator[None]:
    """Let Optuna say nothing of a study that is none of the user's."""
    before = library.logging.get_verbosity()
    library.logging.set_verbosity(library.logging.WARNING)
    try:
        yield
    finally:
        library.logging.set_verbosity(before)
