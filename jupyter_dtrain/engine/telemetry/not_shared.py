"""What the user is told where a cell has shared nothing out: the reason, and what changes it, if anything does."""

from __future__ import annotations

from ..task import Semantics

ALONE = (
    "Nothing in the cell has initialized a process group, so each engine ran all of it by itself, and what rank 0 has made is kept. "
    "What looks for the engines when it is made (a Trainer of Lightning, an Accelerator) is to be made in this cell."
)
"""Of a cell that is to distribute itself."""


NOT_FORESEEN = (
    "One engine ran this cell, which draws batches from a DataLoader that could not be seen beforehand: "
    "with `--replicate` all engines share them."
)


def advice(semantics: Semantics, *, drew: bool, has_model: bool, has_trained: bool) -> str:
    """Return what to say of a cell that has trained and shared nothing out.

    Parameters
    ----------
    semantics : Semantics
    drew : bool
        Whether a loader gave it batches.
    has_model : bool
        Whether it has an ``nn.Module`` with parameters.
    has_trained : bool
        With one in training mode.
    """
    if drew and not has_trained:
        why = (
            "No model was in training mode, without which loaders share nothing out"
            if has_model
            else "The cell trains no `nn.Module`, without which loaders share nothing out"
        )
        train = "`model.train()` before the loop, or `--split-eval`, changes that." if has_model else "`--split-eval` changes that."
        return f"{why}, so each engine computed all of it." + ("" if semantics.split_evaluation else f" {train}")
    computed = "No loader shared out the data, so each engine computed all of it."
    if has_model and not semantics.split_inputs:
        return f"{computed} `--split-inputs` shares out what models are called on by its rows."
    return f"{computed} It takes as long as on one engine; batches of a `DataLoader` are shared out."
