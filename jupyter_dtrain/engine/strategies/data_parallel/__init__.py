"""Data parallelism (``--strategy auto``): each rank has a shard of every batch, and gradients are averaged."""

from ....strategies import EVERYDAY, Feature, StrategyInfo, register

INFO = StrategyInfo(
    name="auto",
    summary="is data parallel (DDP): each engine gets a shard of every batch, and gradients are averaged; it is the default, and takes the "
    "fastest other plan where a model does not fit",
    implementation=f"{__name__}.strategy:DataParallel",
    supports=EVERYDAY | {Feature.HOSTS, Feature.LOCAL_STEPS},
    known_as=("ddp", "dp", "data-parallel", "data_parallel"),
)
register(INFO)
