"""Wrap Optuna's samplers and pruners for trials of a cell.

All trials are sampled before the first begins, so they depend on the seed alone, and not on the results of earlier trials. A sampler that
learns from results (TPE) would choose other trials for each number of engines.
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
"""Draws for each wanted trial before it is assumed that no other combinations exist."""
MOST_LISTED = 1000
"""Maximum numbers of a range that is sampled as a list. Each combination of lists is sampled once."""


class Study:
    """Trials of a search, and the decision which are poor.

    Parameters
    ----------
    search : Search
    vary : iterable of (str, str)
        Names, each with a range or an expression, as in :func:`.grid.axes_of`.
    namespace : dict
        Namespace of the expressions.
    metric : Metric, optional
        Metric by which trials are compared.

    Attributes
    ----------
    trials : list of Trial
        Each combination of values once; fewer than requested if there are no more combinations.

    Raises
    ------
    UsageError
        Optuna is missing, or values cannot be evaluated.
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
        """Return whether to stop trial `number`, whose metric is `value` after `resource` reported values.

        It is compared with the trials for which this was called before with the same `resource`.
        """
        trial = self._asked[number - 1]
        trial.report(value, resource)
        poor: bool = trial.should_prune()
        return poor

    def _drawn(self, wanted: int, most: int | None) -> list[tuple[optuna.trial.Trial, dict[str, tuple[str, Any]]]]:
        """Return `wanted` distinct trials, or as many as exist, each with its values and their texts."""
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
        return CategoricalDistribution(range(len(axis)))  # indices, as the values may be any objects
    if axis.is_whole:
        return IntDistribution(int(axis.low), int(axis.high), log=axis.is_log, step=int(axis.step or 1))
    return FloatDistribution(axis.low, axis.high, log=axis.is_log, step=axis.step)


def _chosen(axis: Axis | Range, drawn: Any) -> tuple[str, Any]:
    """Return the sampled value with its text."""
    if not isinstance(axis, Range):
        place: int = drawn
        return axis[place]
    value = axis.shown(drawn)
    return repr(value), value


@contextmanager
def _quiet(library: Any) -> Iterator[None]:
    """Suppress Optuna's log messages about a study that the user did not create."""
    before = library.logging.get_verbosity()
    library.logging.set_verbosity(library.logging.WARNING)
    try:
        yield
    finally:
        library.logging.set_verbosity(before)
