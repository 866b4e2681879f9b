"""Tensor parallelism (``--strategy tensor``): linear layers, with their gradients and optimizer state, sharded by columns or rows."""

from ....strategies import EVERYDAY, Divided, Feature, StrategyInfo, register

_OF_SHARDS = {Feature.SHARDING, Feature.RNG, Feature.BATCHNORM, Feature.BALANCE}

INFO = StrategyInfo(
    name="tensor",
    summary="has each engine compute some columns of every large linear layer, on all of each batch (tensor parallel), for wide layers",
    implementation=f"{__name__}.strategy:TensorParallel",
    supports=(EVERYDAY | {Feature.NAMED_SHARDS, Feature.HOSTS})
    - _OF_SHARDS
    - {Feature.ACTIVATION_CHECKPOINTS, Feature.VERIFY, Feature.COMPRESSION},
    axis="tp",
    divides=frozenset(Divided),
    divides_on=frozenset({"cpu"}),  # ranks exchange columns in memory that they share
    known_as=("tp", "megatron", "tensor-parallel", "model-parallel"),
)
register(INFO)
