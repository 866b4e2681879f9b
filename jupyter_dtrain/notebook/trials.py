"""``%%distribute --vary``: make trials of a line, and bring the results of the best one into the notebook."""

from __future__ import annotations

import ast
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..analysis.code_objects import mentioned, sources_of
from ..elastic.job import CellJob
from ..engine.task import ProcessState
from ..errors import CellError, UsageError
from ..transport.sending import Sending
from ..trials.grid import Trial, having, root_of, set_in, trials_of
from ..trials.pruning import Pruning
from ..trials.study import Study
from .output import CellOutput
from .tracebacks import at_fault, cell_error
from .trials_table import TrialsTable

if TYPE_CHECKING:
    from ..analysis.names import CellNames
    from ..capture.bundle import Bundle
    from ..options import RunOptions
    from ..runs.record import CellOrigin
    from ..session.session import Session
    from ..transport.base import BlobStore
    from ..trials.scheduler import OfTrial, TrialScheduler
    from ..trials.tried import Tried


@dataclass(frozen=True, kw_only=True)
class TrialsCell:
    """A cell to run as trials.

    Attributes
    ----------
    source, filename, tree : str, str, ast.Module
        Python source, its file name in tracebacks, and its syntax tree.
    cell, origin : str, CellOrigin
        The cell as it was typed, and where it is.
    names : CellNames
        What it needs from the notebook.
    cells : mapping of str to str
        File names of cells → their display names.
    """

    source: str
    filename: str
    tree: ast.Module
    cell: str
    origin: CellOrigin
    names: CellNames
    cells: Mapping[str, str]

    def run(self, session: Session, options: RunOptions, namespace: dict[str, Any]) -> TrialScheduler:
        """Run the trials in parallel, show their progress, and return their scheduler.

        The varied values of the best trial are then set in `namespace`; its results are not yet.

        Raises
        ------
        UsageError
            The cell does not take a varied name from the notebook, or its values are invalid.
        CellError
            The cell has failed in every trial.
        """
        for target, _ in options.vary:
            self._check_set(root_of(target))
        output, table, moment = CellOutput(), TrialsTable(options.best), ProcessState.now(self.source)
        trials, pruning = (
            _searched(options, namespace, output) if options.search is not None else (trials_of(options.vary, namespace), None)
        )
        name = options.name or ", ".join(target for target, _ in options.vary)
        sweep: dict[str, str | int] = {"id": secrets.token_hex(8), "name": name, "trials": len(trials)}

        def prepare(trial: Trial) -> tuple[OfTrial, Sequence[object]]:
            with having(namespace, trial.values):
                bundle = self._packed(namespace, options)
            return self._work(trial, bundle, options, moment, sweep), bundle.tracked

        result = session.run_trials(
            trials, options, prepare, output=output, on_tick=lambda trials: table.update(trials.tried, trials.best), pruning=pruning
        )
        table.show(
            result.tried, result.best, " ".join(filter(None, [_closing_sentence(result, options), _of_pruned(result, pruning, options)]))
        )
        self._tell_failed(result.tried, output)
        if result.best is not None:
            for target, value in result.best.trial.values.items():
                set_in(namespace, target, value)
        return result

    def _check_set(self, name: str) -> None:
        """Raise a `UsageError` if the cell assigns `name` itself."""
        if name in self.names:
            return
        line = next((node.lineno for node in ast.walk(self.tree) if isinstance(node, ast.Name) and node.id == name), None)
        if line is not None:
            raise UsageError(f"--vary {name}: line {line} of the cell sets {name!r} itself. Set it in a cell before this one.")

    def _packed(self, namespace: dict[str, Any], options: RunOptions) -> Bundle:
        from ..capture.bundle import pack  # imports torch

        bundle = pack(self.names, namespace)
        used = {*self.names}.union(*(mentioned(ast.parse(text)) for text in sources_of(bundle.tracked).values()))
        for name in (root_of(target) for target, _ in options.vary):
            if name not in used:
                raise UsageError(f"--vary {name}: neither the cell nor a function that it calls uses {name!r}.")
        return bundle

    def _work(self, trial: Trial, bundle: Bundle, options: RunOptions, moment: ProcessState, sweep: Mapping[str, str | int]) -> OfTrial:
        own = replace(options, vary=trial.texts, name=" ".join(filter(None, (options.name, trial.label))))

        def work(blobs: BlobStore) -> CellJob:
            return CellJob.of(
                self.source,
                bundle,
                blobs,
                options=own,
                cell=self.cell,
                origin=self.origin,
                filename=self.filename,
                moment=moment,
                on_progress=Sending(lambda _: None),
                sweep=sweep,
            )

        return work

    def _tell_failed(self, tried: Sequence[Tried], output: CellOutput) -> None:
        """Report the failed trials; raise their error if all have failed."""
        failed = [one for one in tried if one.failed]
        if failed and len(failed) == len(tried):
            raise self._error(failed)
        for one in failed:
            output.say(f"[{one.trial.label}] {self._what_failed(one)}")

    def _error(self, failed: Sequence[Tried]) -> BaseException:
        first = failed[0]
        error = self._cell_error(first)
        if error is None:
            return first.error or (first.result.lost if first.result is not None else None) or UsageError("The trials have failed.")
        if len(failed) > 1 and isinstance(error, CellError):
            error.lines.append(f"(The cell failed in all {len(failed)} trials; this is the error of {first.trial.label}.)")
        return error

    def _what_failed(self, tried: Tried) -> str:
        error = self._cell_error(tried)
        if error is None or tried.result is None:
            return str(tried.error or (tried.result.lost if tried.result is not None else ""))
        return at_fault(tried.result.ends, self.cells)

    def _cell_error(self, tried: Tried) -> CellError | None:
        return None if tried.result is None else cell_error(tried.result.ends, cells=self.cells, left_out={})


def _searched(options: RunOptions, namespace: dict[str, Any], output: CellOutput) -> tuple[list[Trial], Pruning | None]:
    """Return the trials of a search, and the pruning of poor ones, if any."""
    search = options.search
    assert search is not None
    study = Study(search, options.vary, namespace, options.best)
    if len(study.trials) < search.num_trials:
        output.say(f"--search {search}: there are {len(study.trials)} different combinations of values, and each is tried once.")
    return study.trials, Pruning(search, study.is_poor) if search.prunes else None


def _of_pruned(result: TrialScheduler, pruning: Pruning | None, options: RunOptions) -> str:
    """Return a sentence about trials that were pruned, or why none was."""
    if pruning is None or options.best is None:
        return ""
    count = sum(tried.pruned is not None for tried in result.tried)
    if not count and pruning.most_values == 1:
        name = options.best.name
        return f"No trial could be stopped early: each had a value of {name!r} at its end alone. Log it in the loop, or assign it there."
    return f"{count} of {len(result.tried)} trials were stopped early." if count else ""


def _closing_sentence(result: TrialScheduler, options: RunOptions) -> str:
    """Return a sentence that says what the notebook holds after the trials."""
    if result.best is not None:
        steps = (
            result.best.result.first.steps if result.best.stopped and result.best.result is not None and result.best.result.first else None
        )
        early = "" if steps is None else f" It was stopped after step {steps}, before its end: its value is that of this step."
        return f"Best trial: {result.best.trial.label}. Its model and variables are now in the notebook.{early}"
    as_before = "The notebook's objects are as they were before the cell"
    if options.best is None:
        return f"{as_before}. Add --best METRIC to bring the best trial's results into the notebook."
    if all(tried.failed for tried in result.tried):
        return f"{as_before}."
    return (
        f"{as_before}: no trial has a finite value of {options.best.name!r}. Log it with jupyter_dtrain.log, or assign a variable of "
        "that name."
    )
