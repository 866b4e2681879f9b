"""``--strategy zero3-all``: as ``zero3``, with parameters of any size sharded, as those of the tests' models are small."""

from __future__ import annotations

from jupyter_dtrain.engine.strategies.zero3 import INFO as ZERO3
from jupyter_dtrain.engine.strategies.zero3.strategy import Zero3
from jupyter_dtrain.strategies import StrategyInfo, register


class Zero3OfAll(Zero3):
    """Every parameter with as many rows as there are ranks is sharded."""

    least = 0


def divide_from(num_bytes: int) -> None:
    """Let the strategies of this engine divide parameters from so many bytes on."""
    Zero3.least = num_bytes


INFO = StrategyInfo(
    name="zero3-all",
    summary=ZERO3.summary,
    implementation=f"{__name__}:{Zero3OfAll.__name__}",
    supports=ZERO3.supports,
    divides=ZERO3.divides,
    divides_on=ZERO3.divides_on,
)
register(INFO)
