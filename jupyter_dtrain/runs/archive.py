"""Answer the sidebar's queries and commands about the past runs of a folder.

The archive has its own connection to the database, so that a query of a million points does not block the run that is being written.
"""

from __future__ import annotations

from pathlib import Path

from ..errors import StoreError
from ..protocol import Command, CurveSummary, PastRun, Points, Reply, RunCell, Sweep
from .comparison import compare
from .curves import LEAST_LIMIT, LOSS, MAX_VIEW_POINTS, OF_DEVICES
from .detached_index import DEFAULT_FOLDER
from .exports.to_html import page_of
from .output_log import read_output
from .record import RunRecord
from .store import RunStore

MAX_RUNS = 1000
"""Maximum number of runs that are listed, the newest."""
MAX_COMPLAINTS = 20
"""Maximum number of lines about rows that cannot be shown."""


class RunArchive:
    """Past runs of a folder, for the sidebar's commands.

    Parameters
    ----------
    folder : Path, optional
        Folder of the runs; by default the one beside the notebook.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._store = RunStore(folder or DEFAULT_FOLDER)

    @property
    def folder(self) -> Path:
        """The folder of the runs."""
        return self._store.folder

    def answer(self, command: Command) -> Reply:
        """Execute a command about past runs.

        Raises
        ------
        StoreError
            The command fails.
        """
        match command.name:
            case "list_runs":
                records, complaints = self._store.list_with_complaints()
                metrics = self._store.summaries() if records else {}
                runs = [self._past_run(record, metrics.get(record.number, [])) for record in reversed(records[-MAX_RUNS:])]
                return Reply(id=command.id, ok=True, message="\n".join(complaints[-MAX_COMPLAINTS:]), runs=runs)
            case "get_curves":
                return Reply(id=command.id, ok=True, message="", points=self._curves(command))
            case "compare_runs":
                before, after = self._store.get_run(_named(command.run_id)), self._store.get_run(_named(command.other_run_id))
                return Reply(id=command.id, ok=True, message="", comparison=compare(before, after))
            case "find_cell":
                return Reply(id=command.id, ok=True, message="", cell=_cell_of(self._store.get_run(_named(command.run_id))))
            case "get_output":
                output = read_output(self._store.get_run(_named(command.run_id)).folder, command.rank or 0)
                return Reply(id=command.id, ok=True, message="", output=output)
            case "share_run":
                return Reply(id=command.id, ok=True, message="", page=page_of(self._store.get_run(_named(command.run_id)), self._store))
            case "rename_run":
                self._store.rename_run(_named(command.run_id), command.text or "")
                return Reply(id=command.id, ok=True, message="Renamed.")
            case "tag_run":
                tags = dict.fromkeys(tag.strip() for tag in (command.text or "").split(","))
                self._store.tag_run(_named(command.run_id), [tag for tag in tags if tag])
                return Reply(id=command.id, ok=True, message="Tagged.")
            case "delete_run":
                self._store.delete_run(_named(command.run_id))
                return Reply(id=command.id, ok=True, message="Deleted.")
            case _:
                raise StoreError(f"{command.name} is not a question about past runs.")

    def close(self) -> None:
        """Close the database."""
        self._store.close()

    def _past_run(self, record: RunRecord, metrics: list[CurveSummary]) -> PastRun:
        steps, loss = self._store.last_point(record.run_id, LOSS)
        return PastRun(
            run_id=record.run_id,
            number=record.number,
            name=record.name,
            tags=record.tags,
            phase=record.phase,
            world_size=record.world_size,
            started=record.started,
            ended=record.ended,
            error=record.error,
            steps=steps,
            loss=loss,
            hyperparameters=record.hyperparameters or {},
            metrics=metrics,
            best=best if isinstance(best := record.arguments.get("best"), str) else None,
            sweep=_sweep_of(record),
        )

    def _curves(self, command: Command) -> list[Points]:
        run_id = _named(command.run_id)
        names = self._store.names(run_id)
        if command.curve is None or command.curve == OF_DEVICES:
            names = [name for name in names if name.startswith(OF_DEVICES) == (command.curve is not None)]
        else:
            names = [name for name in names if name == command.curve]
        limit = MAX_VIEW_POINTS if command.limit is None else max(LEAST_LIMIT, command.limit)
        found = []
        for name in names:
            curve, thinned = self._store.view(run_id, name, limit=limit, first=command.first, last=command.last)
            found.append(Points(run_id=run_id, name=name, step=curve.step, time=curve.time, value=curve.finite(), thinned=thinned))
        return found


def _cell_of(record: RunRecord) -> RunCell:
    origin = record.origin()
    return RunCell(run_id=record.run_id, text=record.cell(), cell_id=origin.cell_id, notebook=origin.notebook)


def _sweep_of(record: RunRecord) -> Sweep | None:
    """Return the sweep of which a run is a trial, ``None`` if it is no trial or its record is malformed."""
    found = record.arguments.get("sweep")
    if not isinstance(found, dict):
        return None
    sweep_id, name, trials = (found.get(part) for part in ("id", "name", "trials"))
    if not (isinstance(sweep_id, str) and isinstance(name, str) and isinstance(trials, int)):
        return None
    return Sweep(sweep_id=sweep_id, name=name, trials=trials)


def _named(run_id: str | None) -> str:
    if run_id is None:
        raise StoreError("Which run? The command names none.")
    return run_id
