"""``run.rerun()``: run a recorded cell again in this notebook, with the inputs of the first time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from IPython.core.getipython import get_ipython

from ..errors import UsageError
from ..runs.queries import find_run
from ..runs.recorded import RecordedRun
from .busy import busy
from .output import CellOutput
from .returning import take

if TYPE_CHECKING:
    from .magics import DistributeMagics


def rerun(run: RecordedRun, *, engines: int | None, trust: bool) -> RecordedRun:
    """Run the cell of a run again, and return the new run: see :meth:`.RecordedRun.rerun`."""
    from ..elastic.recorded_job import RecordedJob

    magics = _magics()
    job = RecordedJob(run.record, engines=engines, trusted=trust)
    output = CellOutput(magics.session.run_view(magics.view, at_once=True))
    if job.differs:
        output.say(f"{run.name} was recorded with {job.differs}: the result may differ in the last digits.")
    session = magics.session.get()
    assert magics.shell is not None
    with busy(magics.shell):
        result = session.run_handed(job.cluster, partial(job.job, say=output.say), output=output)
    assert job.packed is not None
    run_id = result.task.run_id
    take(magics.shell, result, job.packed, output)
    return find_run(run_id, session.runs_folder)


def _magics() -> DistributeMagics:
    shell = get_ipython()
    found = shell.magics_manager.registry.get("DistributeMagics") if shell is not None else None
    if found is None:
        raise UsageError("rerun() needs a notebook with the extension: run `%load_ext jupyter_dtrain` first.")
    return found  # type: ignore[no-any-return]
