"""Decide from the names in a collate function's code whether one sample may influence others of the batch.

One batch says little about the next: a batch without an outlier is not rescaled, one of equal lengths is not reordered. Therefore ranks
collate their own samples alone only if the code names no statistic, order or random function. A false alarm only costs time: each rank
then collates full batches. Padding needs no name, because it shows in the shapes of each batch.
"""

from __future__ import annotations

import dis
from types import CodeType
from typing import Any

from torch.utils.data import DataLoader

from ...analysis.code_objects import everything
from ..code_inspection import call_uses

_STATISTICS = (
    "all allclose amax amin aminmax any argmax argmin average bincount Counter cumprod cumsum equal fromkeys fsum histc histogram isin "
    "kthvalue logsumexp max maximum mean median min minimum mode nanmean nanmedian nansum norm percentile prod quantile reduce softmax "
    "std std_mean sum unique unique_consecutive var var_mean"
)
_ORDERS = "argpartition argsort flip fliplr flipud frozenset groupby lexsort nlargest nsmallest reverse reversed roll set sort sorted topk"
_DRAWS = (
    "bernoulli bernoulli_ beta choice choices dirichlet dropout exponential_ gauss geometric integers multinomial normal normal_ "
    "permutation permuted poisson rand rand_like randint randint_like randn randn_like random random_ random_sample randperm randrange "
    "sample shuffle standard_normal triangular uniform uniform_"
)
_WORDS_OF_DRAWS = frozenset(_DRAWS.split())
_WORDS = _WORDS_OF_DRAWS.union(_STATISTICS.split(), _ORDERS.split())
_OF_SETS = frozenset(("BUILD_SET", "SET_ADD", "SET_UPDATE"))


def may_mix(collate: object) -> bool:
    """Return whether the code of a collate function names an operation that depends on several samples."""
    return call_uses(collate, lambda code, names: not _WORDS.isdisjoint(names) or _makes_sets(code))


def may_draw(collate: object) -> bool:
    """Return whether the code of a collate function names a random function."""
    return call_uses(collate, lambda _, names: not _WORDS_OF_DRAWS.isdisjoint(names))


def fetching_may_draw(loader: DataLoader[Any]) -> bool:
    """Return whether the code of a map-style data set, or of the collate function, names a random function."""
    dataset = loader.dataset
    fetch = [getattr(dataset, name, None) for name in ("__getitem__", "__getitems__")]
    return any(may_draw(code) for code in (*fetch, loader.collate_fn) if code is not None)


def _makes_sets(code: CodeType) -> bool:
    return any(step.opname in _OF_SETS for part in everything(code) for step in dis.get_instructions(part))
