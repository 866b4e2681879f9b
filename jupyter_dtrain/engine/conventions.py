"""What the ranks share out, and what stays as on one process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Conventions:
    """What one rank does of the whole, as the options say. Without any: numbers over the whole batch, the rest each rank for itself.

    Attributes
    ----------
    global_numbers : bool
        Whether the cell sees global batches (`global_view`) or the rank's own.
    global_draws : bool
        Whether models and data sets draw for the whole batch, of which ranks take their rows (`drawing`), or each rank for itself.
    global_batchnorm : bool
        Whether BatchNorm inside models takes the statistics of the whole batch, or each rank those of its share.
    per_rank_batches : bool
        Whether a loader's ``batch_size`` is that of each rank, and not of all of them together.
    split_evaluation : bool
        Whether loaders are split in evaluation too.
    split_inputs : bool
        Whether models in training share out what they are called on where no loader did.
    checkpoint_activations : bool
        Whether repeated blocks of models keep their inputs alone for the backward pass, which computes the rest again.
    shared_states : bool
        Whether each rank keeps a part of what optimizers keep of their parameters, or all of it.
    """

    global_numbers: bool = True
    global_draws: bool = False
    global_batchnorm: bool = False
    per_rank_batches: bool = False
    split_evaluation: bool = False
    split_inputs: bool = False
    checkpoint_activations: bool = False
    shared_states: bool = False
