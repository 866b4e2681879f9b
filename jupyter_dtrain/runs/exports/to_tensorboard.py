"""Write a run for TensorBoard: an event file with every point at its own time, and the hyperparameters for the HPARAMS tab."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from .exported import ExportedRun, library


def write(run: ExportedRun, folder: Path) -> Path:
    """Write `run` into a folder below `folder`, which is TensorBoard's ``--logdir``; return that folder."""
    library("tensorboard")
    tensorboard: Any = library("torch.utils.tensorboard", "tensorboard")
    hparams: Any = library("torch.utils.tensorboard.summary", "tensorboard").hparams
    target = folder / run.record.run_id
    writer: Any = tensorboard.SummaryWriter(str(target))
    try:
        for name, points in run.curves.items():
            for step, when, value in points:
                writer.add_scalar(name, value, step, walltime=when, new_style=True, double_precision=True)
        # A bool is written as text, as it would become a number: Python's bool is an int.
        values = {
            name: value if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
            for name, value in run.hyperparameters.items()
        }
        last = {name: points[-1][2] for name, points in run.curves.items() if points and math.isfinite(points[-1][2])}
        for summary in hparams(values, last):
            writer.file_writer.add_summary(summary)
        rows = "\n".join(f"| {name} | {text} |" for name, text in run.facts.items())
        writer.add_text("run", f"| | |\n|---|---|\n{rows}", walltime=run.record.started)
        writer.add_text("cell", "\n".join(f"    {line}" for line in run.record.cell().splitlines()), walltime=run.record.started)
    finally:
        writer.close()
    return target
