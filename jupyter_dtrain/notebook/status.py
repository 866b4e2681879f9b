"""The cluster and the last run in a few lines of text."""

from __future__ import annotations

from ..protocol import ClusterUpdate, RunUpdate


def describe(cluster: ClusterUpdate, run: RunUpdate | None) -> str:
    """Return what ``%distribute status`` prints."""
    if cluster.phase != "running":
        text = "No engines are running." if cluster.phase == "stopped" else f"The engines are {cluster.phase}."
        if cluster.detail:
            text += f" {cluster.detail}"
        if cluster.phase == "stopped":
            text += "\nThe first %%distribute cell starts them, or `%distribute start -n 2` does it now."
        return text
    count = len(cluster.engines)
    lines = [f"{count} engine{'s' if count > 1 else ''} running"]
    lines += [f"  rank {e.rank}  {e.device:<7} {e.device_name}  ({e.host}, process {e.pid})" for e in cluster.engines]
    if run is not None:
        number = run.odd_loss if run.loss is None else f"{run.loss:.4g}"
        loss = "" if number is None else f", loss {number}"
        lines.append(f"{run.name}: {run.phase}, {_count(run.step, 'step')} in {run.elapsed:.1f} s{loss}")
    return "\n".join(lines)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
