"""The checks of a run."""

from __future__ import annotations

from collections.abc import Callable

from ...options import Verify
from ..tensor.recompute import BackwardPasses
from ..tensor.redistribute import Exchange
from ..tensor.view import GlobalView
from .fetches import FetchChecks
from .models import ModelChecks
from .schedule import Schedule


def new_checks(
    mode: Verify,
    *,
    view: GlobalView | None,
    passes: BackwardPasses,
    world_size: int,
    statistics_per_rank: bool,
    draws_per_rank: bool,
    whole: tuple[str, ...],
    say: Callable[[str], None],
    step: Callable[[], int],
) -> tuple[ModelChecks | None, FetchChecks | None]:
    """Return the checks of calls of models and of loaders, ``None`` where nothing is to be checked.

    The parameters are those of the two.
    """
    if mode == "off" or view is None:
        return None, None
    schedule = Schedule(mode, world_size=world_size)
    models = ModelChecks(
        passes=passes,
        scale=float(world_size),
        statistics_per_rank=statistics_per_rank,
        draws_per_rank=draws_per_rank,
        whole=whole,
        say=say,
        step=step,
        schedule=schedule,
    )
    fetches = FetchChecks(agree=Exchange.objects, whole=whole, say=say, step=step, schedule=schedule, world_size=world_size)
    return models, fetches
