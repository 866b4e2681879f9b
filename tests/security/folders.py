"""A user's files, and a folder of runs that somebody else has filled to get at them."""

from __future__ import annotations

import hashlib
import pickle
import sqlite3
from contextlib import closing
from pathlib import Path

from jupyter_dtrain.checkpoint.checkpoint_commands import CheckpointShelf
from jupyter_dtrain.checkpoint.folder import CheckpointFolder
from jupyter_dtrain.errors import DtrainError
from jupyter_dtrain.protocol import Command, Reply
from jupyter_dtrain.runs.archive import RunArchive
from jupyter_dtrain.runs.database import DATABASE
from jupyter_dtrain.runs.detached_index import going, waiting
from jupyter_dtrain.runs.store import RunStore
from jupyter_dtrain.transport.blob_store import BlobFolder

PRIVATE = b"-----BEGIN PRIVATE KEY-----\n"
QUESTIONS = ("list_runs", "get_curves", "find_cell", "compare_runs", "list_checkpoints")


def everything(folder: Path) -> dict[str, tuple[int, int, str, str]]:
    """Return all that is in a folder: kind, content and time of change of each, by name."""
    found: dict[str, tuple[int, int, str, str]] = {}
    for path in sorted(folder.rglob("*")):
        seen = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() and not path.is_symlink() else ""
        target = str(path.readlink()) if path.is_symlink() else ""
        found[str(path.relative_to(folder))] = (seen.st_mode, seen.st_mtime_ns, content, target)
    return found


class Victim:
    """A user's project, whose folder of runs has one run with two checkpoints, and what the attacker is after beside it."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.private = self.home / "private"
        self.private.mkdir(parents=True)
        self.key = self.private / "id_ed25519"
        self.key.write_bytes(PRIVATE)
        (self.private / "step-000010").mkdir()
        (self.private / "step-000010" / "thesis.tex").write_text("all of it")
        self.project = folder / "project"
        self.project.mkdir()
        (self.project / "thesis.ipynb").write_text("{}")
        self.runs = self.project / "dtrain-runs"
        with closing(RunStore(self.runs)) as store:
            self.run_id = store.create_run("digits", "train()\n", 2, {}, {})
            store.finish_run(self.run_id, "finished")
        self.run = self.runs / self.run_id
        self.memory = BlobFolder(folder / "memory")
        self.write_checkpoints(self.run)

    def write_checkpoints(self, run: Path) -> CheckpointFolder:
        checkpoints = CheckpointFolder(run)
        data = self.memory.put(memoryview(b"data" * 100))
        checkpoints.write_task(pickle.dumps(f"task of {run.name}"), self.memory, [data])
        for step in (10, 20):
            part = pickle.dumps(f"{run.name} at {step}")
            checkpoints.write([part], self.memory, [data, self.memory.put(memoryview(b"%d" % step * 50))], step=step, place="line 7")
        return checkpoints

    def sql(self, *statements: str) -> None:
        """Execute statements behind our back."""
        with closing(sqlite3.connect(self.runs / DATABASE)) as connection, connection:
            for statement in statements:
                connection.execute(statement)

    def outside(self) -> dict[str, tuple[int, int, str, str]]:
        """All that is the user's and no run's."""
        project = {name: seen for name, seen in everything(self.project).items() if not name.startswith("dtrain-runs")}
        return everything(self.home) | project

    def ask(self, name: str, run_id: str | None = None, **options: object) -> Reply:
        """Do what the sidebar does; return what it is answered."""
        run_id = self.run_id if run_id is None else run_id
        command = Command(id="1", name=name, run_id=run_id, **{"other_run_id": run_id, **options})  # type: ignore[arg-type]
        of = CheckpointShelf(self.runs) if "checkpoint" in name else RunArchive(self.runs)
        with closing(of):
            try:
                return of.answer(command)
            except DtrainError as error:
                return Reply(id="1", ok=False, message=str(error))

    def look(self, run_id: str | None = None) -> list[Reply]:
        """Do all that opening the notebook and the sidebar does."""
        going(self.runs)
        waiting(self.runs)
        return [self.ask(question, run_id) for question in QUESTIONS]
