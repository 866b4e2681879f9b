"""Return a cell's results to the notebook: values, state and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from IPython.core.interactiveshell import InteractiveShell

from ..analysis.code_objects import keep_text
from ..capture.bundle import unpack
from ..errors import CellInterrupted
from ..serialization.library_placing import said
from ..serialization.unpickler import Unpacker
from ..system.interpreter import Interrupts
from .kernel import cell_names
from .memory_advice import name_plan
from .results import apply_outcome, device_here
from .tracebacks import cell_error, ended

if TYPE_CHECKING:
    from ..elastic.run_result import RunResult
    from ..engine.task import Outcome
    from ..serialization.pickler import Packed
    from .output import CellOutput


def take(shell: InteractiveShell, result: RunResult, packed: Packed, output: CellOutput) -> None:
    """Put the inputs and results of a cell of another kernel, or of the record, into the notebook."""
    task = result.task
    values, tracked = unpack(Unpacker(packed, namespace=shell.user_ns, device_for=device_here))
    shell.user_ns.update(values)
    keep_text(task.filename, task.source)
    try:
        bring_home(shell, result, tracked, {}, task.filename, output)
    finally:
        del result, packed, values, tracked


def bring_home(
    shell: InteractiveShell, result: RunResult, tracked: list[object], left_out: dict[str, str], filename: str, output: CellOutput
) -> Any:
    """Apply the cell's changes to the notebook, and raise the cell's error."""
    value = None
    with Interrupts(wake=lambda: None) as late:  # half of the weights would be useless
        if result.first is not None:
            value, unread = apply_outcome(result.first, result.returned, tracked, shell.user_ns)
            # After one rank's error, objects of that moment (batches) stay on the engines; messages about them would bury the error.
            for name, reason in result.first.not_returned.items() if result.first.failure is None else ():
                output.say(f"{name!r} stays on the engines, because it cannot be sent back: {reason}")
            for name, reason in unread.items():
                output.say(f"{name!r} stays on the engines, because it cannot be read here: {reason}")
            for line in said(on_engine=False):
                output.say(line)
            if result.first.states_missing:
                output.say(_missing(result.first, result.task.strategy.name))
            if result.first.surroundings is not None and (withheld := result.first.surroundings.withheld):
                output.say(f"Secrets are not kept on disk: the notebook does not get {', '.join(withheld)}, which the cell has set.")
        result.taken()
    error: BaseException | None = result.lost
    if error is None:
        error = raised = cell_error(result.ends, cells=cell_names(shell, filename), left_out=left_out)
        if result.interrupted or late.count:
            stopped = [f"KeyboardInterrupt: {stopped_sentence(result.first)}", *ended(result.ends)]
            error = CellInterrupted(raised.lines if raised is not None else stopped)
        del raised
    if error is not None:
        name_plan(error, shell.user_ns, result.task)
        # The traceback keeps this frame. If the frame kept the result and the error in turn, these, with everything that was sent,
        # would live until the next garbage collection.
        del result, tracked
        try:
            raise error
        finally:
            del error
    if result.first is not None and result.first.stopped:
        output.say(stopped_sentence(result.first))
    return value


def stopped_sentence(first: Outcome | None) -> str:
    """Return a sentence that says where a run was stopped."""
    if first is None:
        return "Stopped. The notebook's objects are as they were before the cell."
    if first.from_snapshot:
        return f"Stopped. The notebook has the state of step {first.steps}, from the last snapshot."
    if not first.steps:
        return "Stopped. No step was finished."
    return f"Stopped after step {first.steps}; the notebook has the weights trained so far."


def _missing(first: Outcome, strategy: str) -> str:
    """Return a message about optimizer state that was lost with its engines."""
    what = f"all state is that of step {first.steps}" if first.from_snapshot else "that shard is as it was before the cell"
    return f"Engines that left held a shard of the optimizer state (`--strategy {strategy}`): {what}."
