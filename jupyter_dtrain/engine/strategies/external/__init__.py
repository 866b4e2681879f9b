"""A cell that distributes itself (``--strategy none``): run as ``torchrun`` runs a script, and left alone."""

from ....strategies import StrategyInfo, register

INFO = StrategyInfo(
    name="none",
    summary="runs the cell as torchrun runs a script, for code that distributes itself",
    implementation=f"{__name__}.strategy:ExternalProgram",
    supports=frozenset(),
    axis=None,
    known_as=("torchrun", "external", "accelerate", "lightning"),
    counts_steps=False,
    can_continue=False,
    outlives_controller=True,
    owns_process_group=True,
)
register(INFO)
