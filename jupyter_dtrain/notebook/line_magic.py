"""``%distribute``: carry out the line's command on the cluster and its runs.

Functions import what imports torch or ipyparallel, as ``%distribute status`` needs neither.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from IPython.core.interactiveshell import InteractiveShell

from ..options import View
from ..runs.detached_index import DEFAULT_FOLDER, unfollowed
from .busy import busy
from .control_line import parse_line
from .kernel import compiled
from .magic_arguments import HelpRequested
from .output import CellOutput, show
from .preview_magic import cell_to_preview, plan_text, preview_text
from .summary import describe, detached_text

if TYPE_CHECKING:
    from .control_line import LineCommand
    from .lazy import LazySession


class LineMagic:
    """Carry out ``%distribute`` lines.

    Parameters
    ----------
    shell : InteractiveShell
    session : LazySession
    view : {"live", "summary", "off"}
        View of a run that is resumed or attached to.
    """

    def __init__(self, shell: InteractiveShell, session: LazySession, view: View) -> None:
        self._shell = shell
        self._session = session
        self._view: View = view

    def run(self, line: str) -> None:
        """Carry out a line."""
        try:
            command = parse_line(line)
        except HelpRequested as asked:
            show(asked)
            return
        if command.show_script:
            from ..cluster.launchers import find_launcher

            show(find_launcher(command.cluster.launcher).script(command.cluster).rstrip())
            return
        if command.action == "start":
            progress = CellOutput().progress
            cluster = self._session.get().start_cluster(command.cluster, on_progress=progress)
            if command.dask_workers:
                cluster.start_dask(command.dask_workers, limit=command.cluster.start_timeout, on_progress=progress)
        if command.action in ("resume", "attach"):
            self._go_on(command)
        elif command.action == "stop":
            stopped = self._session.exists and self._session.get().stop_cluster()
            show("The engines have stopped." if stopped else "No engines are running.")
        elif command.action == "debug":
            from .rank_debugger import debug

            debug(self._session, self._shell, command.rank)
        elif command.action == "doctor":
            from ..cluster.hosts.doctor import examine

            show(examine(command.cluster, on_progress=CellOutput().progress))
        elif command.action == "preview":
            self._show_of_cell(command.cell, lambda tree: preview_text(tree, self._shell.user_ns))
        elif command.action == "plan":
            self._show_of_cell(command.cell, lambda tree: plan_text(tree, self._shell.user_ns, command.cluster))
        else:
            snapshot = self._session.telemetry.views.snapshot()
            show(describe(snapshot.cluster, snapshot.run))
            if detached := unfollowed(self._session.get().runs_folder if self._session.exists else DEFAULT_FOLDER):
                show(detached_text(detached))

    def _show_of_cell(self, number: int | None, text_of: Callable[[ast.Module], str]) -> None:
        """Show the result of `text_of` for an earlier cell: the one with this number, by default the last distributed one."""
        shell = self._shell
        number, cell = cell_to_preview(shell.history_manager.input_hist_raw, number)  # type: ignore[union-attr]
        _, _, tree = compiled(cell, number, shell)
        show(f"Cell [{number}]\n\n{text_of(tree)}")

    def _go_on(self, command: LineCommand) -> None:
        """Resume or attach to a run, and put its cell's inputs and results into the notebook."""
        shell = self._shell
        output = CellOutput(self._session.run_view(self._view, at_once=True))
        session = self._session.get()
        with busy(shell):
            if command.action == "attach":
                result, packed = session.attach(command.run, trusted=command.trusted, output=output)
            else:
                result, packed = session.resume(
                    command.run,
                    command.cluster,
                    step=command.step,
                    trusted=command.trusted,
                    strategy=command.strategy,
                    mesh=command.mesh,
                    output=output,
                )
        from .returning import take

        take(shell, result, packed, output)
