"""``%%distribute``: submit a cell to the session, and bring its results into the notebook.

Functions import what imports torch, as engines start meanwhile, and an interrupt must wait for that import.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from IPython.core.interactiveshell import InteractiveShell

from ..analysis.ast_nodes import is_silenced
from ..analysis.code_objects import sources_of
from ..analysis.names import names_in_text
from ..errors import CellInterrupted, UsageError
from ..options import View
from ..system.interpreter import Interrupts, interrupted_before_the_cell
from ..system.resources import give_back
from .busy import busy
from .cell_line import parse_cell_line
from .kernel import cell_names, compiled, number_of_cell, origin_of_cell
from .magic_arguments import HelpRequested, renamed
from .output import CellOutput, show
from .preview_magic import preview_text

if TYPE_CHECKING:
    from ..analysis.names import CellNames
    from ..capture.bundle import Bundle
    from ..elastic.job import CellJob
    from ..options import RunOptions
    from ..transport.base import BlobStore
    from .lazy import LazySession


class CellMagic:
    """Run the cells of ``%%distribute``.

    Parameters
    ----------
    shell : InteractiveShell
    session : LazySession
    view : {"live", "summary", "off"}
        Default of ``--view``.
    """

    def __init__(self, shell: InteractiveShell, session: LazySession, view: View) -> None:
        self._shell = shell
        self._session = session
        self._view: View = view

    def run(self, line: str, cell: str) -> Any:
        """Run the cell on every engine, and return the value of its last expression."""
        try:
            options = parse_cell_line(line, view=self._view)
        except HelpRequested as asked:
            show(asked)
            return None
        for sentence in renamed(line):
            CellOutput().say(sentence)
        shell = self._shell
        source, filename, tree = compiled(cell, number_of_cell(shell), shell)
        if options.preview:
            show(preview_text(tree, shell.user_ns))
            return None
        names = names_in_text(source)
        if options.vary:
            value = self._try(options, cell, source, filename, tree, names)
            return None if is_silenced(source, tree) else value
        if not options.detach:  # a detached run has a process of its own, which starts its engines
            self._session.begin_cluster(options)
        with interrupted_before_the_cell("while the cell's values were packed"):
            bundle = self._packed(options, names)
        trains = _seems_to_train(cell, bundle.tracked)
        output = CellOutput(self._session.run_view(options.view, at_once=trains))
        for sentence in bundle.lines:
            output.say(sentence)
        if trains or options.memory_limit is not None:
            options = self._with_plan(options, tree, names, output)
        result = None
        try:
            with busy(shell):
                result = self._session.get().submit(
                    self._job_of(source, bundle, cell=cell, filename=filename, output=output, is_detached=options.detach),
                    options,
                    output=output,
                )
            from .returning import bring_home

            value = bring_home(shell, result, bundle.tracked, bundle.left_out, filename, output)
            return None if is_silenced(source, tree) else value
        except BaseException:
            del result, bundle  # a traceback keeps this frame until the next error or longer
            give_back()  # here only: it is slow with many small objects, and after a failed cell no other follows at once
            raise

    def _packed(self, options: RunOptions, names: CellNames) -> Bundle:
        """Pickle the notebook's values that a cell needs."""
        shell = self._shell
        with Interrupts(wake=lambda: None) as early:  # a half-imported PyTorch cannot be imported again
            from ..capture.bundle import pack
        if early.count:
            raise KeyboardInterrupt
        _check_split(options.split, names, shell.user_ns)
        return pack(names, shell.user_ns)

    def _with_plan(self, options: RunOptions, tree: ast.Module, names: CellNames, output: CellOutput) -> RunOptions:
        """Return options with a strategy that fits into memory, if they leave the strategy open."""
        from .plan_choice import chosen

        devices = self._session.get().devices_for(options.cluster)
        if not devices:
            return options
        kind = devices[0].kind
        return chosen(options, tree, names, self._shell.user_ns, engines=len(devices), device=kind, say=output.say)

    def _job_of(
        self, source: str, bundle: Bundle, *, cell: str, filename: str, output: CellOutput, is_detached: bool
    ) -> Callable[[BlobStore, RunOptions], CellJob]:
        """Return a function that stores the cell's values and returns its job."""
        from ..elastic.job import CellJob
        from ..engine.task import ProcessState
        from ..transport.sending import Sending

        origin, moment = origin_of_cell(self._shell), ProcessState.now(None if is_detached else source)

        def job(blobs: BlobStore, options: RunOptions) -> CellJob:
            return CellJob.of(
                source,
                bundle,
                blobs,
                options=options,
                cell=cell,
                origin=origin,
                filename=filename,
                moment=moment,
                on_progress=Sending(output.progress),
            )

        return job

    def _try(self, options: RunOptions, cell: str, source: str, filename: str, tree: ast.Module, names: CellNames) -> Any:
        """Run the trials of a cell with ``--vary``, and bring home the results of the best one."""
        from .returning import bring_home
        from .trials import TrialsCell

        shell = self._shell
        _check_split(options.split, names, shell.user_ns)
        tried = TrialsCell(
            source=source,
            filename=filename,
            tree=tree,
            cell=cell,
            origin=origin_of_cell(shell),
            names=names,
            cells=cell_names(shell, filename),
        )
        with busy(shell):
            trials = tried.run(self._session.get(), options, shell.user_ns)
        value = None
        if trials.best is not None and trials.best.result is not None:
            value = bring_home(shell, trials.best.result, list(trials.best.tracked), {}, filename, CellOutput())
        if trials.interrupted:
            raise CellInterrupted(["KeyboardInterrupt: The trials were stopped."])
        return value


def _seems_to_train(cell: str, tracked: Iterable[object]) -> bool:
    """Return whether a cell, or a function sent with it, calls ``.backward(``, so that it will have a curve to show."""
    return any(".backward(" in text for text in (cell, *sources_of(tracked).values()))


def _check_split(split: Iterable[str], names: Iterable[str], namespace: dict[str, Any]) -> None:
    """Raise a `UsageError` if a name in ``--split`` is not a tensor that the cell uses."""
    import torch

    used = set(names)
    for name in split:
        value = namespace.get(name)
        if name not in used or name not in namespace:
            raise UsageError(f"--split {name}: the cell uses no {name!r} of the notebook.")
        if not isinstance(value, torch.Tensor) or not value.dim() or value.requires_grad:
            raise UsageError(
                f"--split {name}: {name!r} is a {type(value).__name__}; only data tensors with one row per sample can be sharded."
            )
