"""The note to a user whose cell has sharded nothing: the reason, and what to do about it."""

from __future__ import annotations

from ..task import Semantics

ALONE = (
    "The cell has not initialized a process group, so each engine ran all of it by itself, and the results of rank 0 are kept. "
    "Create a Lightning Trainer or an Accelerator in this cell: it looks for the ranks when it is created."
)
"""Note about a cell that distributes itself."""


NOT_FORESEEN = (
    "One engine ran this cell, which draws batches from a DataLoader that could not be seen beforehand: "
    "with `--replicate` all engines share them."
)


def advice(semantics: Semantics, *, drew: bool, has_model: bool, has_trained: bool) -> str:
    """Return the note about a cell that has trained and sharded nothing.

    Parameters
    ----------
    semantics : Semantics
    drew : bool
        Whether a loader gave it batches.
    has_model : bool
        Whether it has an ``nn.Module`` with parameters.
    has_trained : bool
        Whether it has trained one in training mode.
    """
    if drew and not has_trained:
        why = (
            "No model was in training mode, so no DataLoader was sharded"
            if has_model
            else "The cell trains no `nn.Module`, so no DataLoader was sharded"
        )
        train = "Call `model.train()` before the loop, or use `--split-eval`." if has_model else "`--split-eval` changes that."
        return f"{why}: every engine processed the full data." + ("" if semantics.split_evaluation else f" {train}")
    computed = "No DataLoader was sharded: every engine processed the full data."
    if has_model and not semantics.split_inputs:
        return f"{computed} `--split-inputs` shards model inputs along dim 0."
    return f"{computed} There is no speed-up over one engine; the batches of a `DataLoader` would be sharded."
