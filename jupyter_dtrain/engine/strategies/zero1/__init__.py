"""Optimizer state sharded over the ranks (``--strategy zero1``)."""

from ....strategies import EVERYDAY, Divided, Feature, StrategyInfo, register

INFO = StrategyInfo(
    name="zero1",
    summary="also shards optimizer state (ZeRO stage 1), which takes less memory",
    implementation=f"{__name__}.strategy:Zero1",
    supports=EVERYDAY | {Feature.HOSTS},
    divides=frozenset({Divided.OPTIMIZER_STATE}),
    known_as=("zero", "zero-1", "zero2"),
)
register(INFO)
