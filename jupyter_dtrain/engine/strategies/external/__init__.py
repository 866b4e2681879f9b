"""A cell that distributes itself (``--strategy none``): run as ``torchrun`` runs a script, and left alone."""

from ....strategies import StrategyInfo, register

INFO = StrategyInfo(
    name="none",
    summary="runs the cell as torchrun runs a script, for code that distributes itself",
    implementation=f"{__name__}.strategy:ExternalProgram",
    supports=frozenset(),
    known_as=("torchrun", "external", "accelerate", "lightning"),
    is_program=True,
)
register(INFO)
