"""Write a run for Weights & Biases offline; ``wandb sync`` uploads it. Nothing here talks to a server.

A separate process writes it: the file is complete only when the library's service has ended, which ends all runs of its process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from ...errors import UsageError
from .exported import ExportedRun, library

TIMEOUT = 600.0
"""Maximum seconds of the process."""


def write(run: ExportedRun, folder: Path, *, project: str) -> Path:
    """Write `run` as an offline run below ``folder/wandb``; return its folder for ``wandb sync``."""
    library("wandb")
    record = run.record
    folder.mkdir(parents=True, exist_ok=True)
    given = {
        "dir": str(folder.absolute()),
        "project": project,
        "name": record.name,
        "config": {**run.hyperparameters, "dtrain": run.facts},
        "tags": [tag for tag in record.tags if tag],
        "rows": list(run.by_step()),
        "exit_code": 0 if record.phase == "finished" else 1,
    }
    command = [sys.executable, "-c", f"from {__name__} import main; main()"]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, timeout=TIMEOUT, check=False)
    if done.returncode:
        raise UsageError(f"Weights & Biases could not write the run:\n{done.stderr.strip()[-2000:]}")
    return Path(done.stdout.splitlines()[-1])


def main() -> None:
    """Write the run that stdin describes, and print its folder."""
    wandb: Any = library("wandb")
    given = json.load(sys.stdin)
    settings = wandb.Settings(console="off", silent=True, disable_git=True, disable_code=True, x_disable_stats=True, x_disable_meta=True)
    about = {name: given[name] for name in ("dir", "project", "name", "config", "tags")}
    made = wandb.init(mode="offline", settings=settings, **about)
    for step, when, values in given["rows"]:
        made.log({**values, "_timestamp": when}, step=step)
    folder = Path(made.dir).parent
    made.finish(exit_code=given["exit_code"])
    wandb.teardown()  # completes the file
    sys.stdout.write(f"{folder}\n")
