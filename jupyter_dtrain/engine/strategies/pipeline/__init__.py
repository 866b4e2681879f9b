"""Pipeline parallelism: a model is cut into stages, each with its parameters, gradients and optimizer state on one rank."""

from ....strategies import EVERYDAY, Divided, Feature, StrategyInfo, register

INFO = StrategyInfo(
    name="pipeline",
    summary="cuts models into stages, one for each engine (GPipe), for models that no engine has room for and whose activations are small",
    implementation=f"{__name__}.strategy:Pipeline",
    supports=(EVERYDAY | {Feature.HOSTS}) - {Feature.ACTIVATION_CHECKPOINTS, Feature.VERIFY, Feature.COMPRESSION},
    axis="pp",
    divides=frozenset(Divided),
    by_blocks=True,
    divides_on=frozenset({"cpu"}),  # activations are sent through the host's memory
    known_as=("pp", "gpipe", "1f1b", "pipelining", "pipeline-parallel"),
)
register(INFO)
