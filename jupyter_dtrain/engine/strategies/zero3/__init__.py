"""Parameters, their gradients and what optimizers keep of them, sharded by rows over the ranks (``--strategy zero3``)."""

from ....strategies import EVERYDAY, Divided, Feature, StrategyInfo, register

INFO = StrategyInfo(
    name="zero3",
    summary="also shards parameters, gradients and optimizer state (ZeRO stage 3, FSDP), for models that no engine has room for",
    implementation=f"{__name__}.strategy:Zero3",
    supports=(EVERYDAY | {Feature.HOSTS}) - {Feature.VERIFY, Feature.COMPRESSION},
    axis="dp_shard",
    divides=frozenset(Divided),
    divides_on=frozenset({"cpu"}),  # ranks read each other's rows in shared memory
    known_as=("fsdp", "fsdp2", "zero-3", "deepspeed"),
)
register(INFO)
