"""``%%distribute`` and ``%distribute``: from what the user typed to the session, and back into the notebook."""

from __future__ import annotations

import ast
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from traitlets import Enum

from ..analysis.ast_nodes import is_silenced
from ..analysis.code_objects import keep_text, sources_of
from ..cluster.folders import sweep
from ..errors import CellInterrupted, UsageError
from ..options import View
from ..runs.detached_index import unfollowed
from ..runs.record import DEFAULT_FOLDER
from ..system.interpreter import Interrupts, interrupted_before_the_cell
from ..system.resources import give_back
from .arguments import HelpRequested, renamed
from .busy import busy
from .cell_line import parse_cell_line
from .completion import completions, explain, install, names_to_offer
from .control_line import parse_line
from .kernel import origin_of_cell
from .lazy import LazySession
from .output import CellOutput
from .preview import cell_to_preview, plan_text, preview_text
from .run_view import RunView
from .summary import describe

if TYPE_CHECKING:
    from ..analysis.names import CellNames
    from ..capture.bundle import Bundle
    from ..elastic.runner import RunResult
    from ..engine.task import Outcome
    from ..options import ClusterOptions, RunOptions
    from ..serialization.pickler import Packed
    from .control_line import LineCommand


@magics_class
class DistributeMagics(Magics):
    """The magics of one IPython shell. torch, ipyparallel and the session are imported when first used."""

    view = Enum(get_args(View), "live", help="What cells show of their runs where they do not say it with --view.").tag(config=True)

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell=shell)
        self.session = LazySession()

    @line_magic
    def distribute(self, line: str) -> None:
        """Start, show or stop the cluster and its runs (``%distribute --help`` lists what there is)."""
        try:
            command = parse_line(line)
        except HelpRequested as asked:
            _show(asked)
            return
        if command.show_script:
            from ..cluster.launchers import find_launcher

            _show(find_launcher(command.cluster.launcher).script(command.cluster).rstrip())
            return
        if command.action == "start":
            self.session.get().start_cluster(command.cluster, on_progress=CellOutput().progress)
        if command.action in ("resume", "attach"):
            self._go_on(command)
        elif command.action == "stop":
            stopped = self.session.exists and self.session.get().stop_cluster()
            _show("The engines have stopped." if stopped else "No engines are running.")
        elif command.action == "doctor":
            from ..cluster.hosts.doctor import examine

            _show(examine(command.cluster, on_progress=CellOutput().progress))
        elif command.action == "preview":
            self._preview(command.cell)
        elif command.action == "plan":
            self._plan(command.cell, command.cluster)
        else:
            snapshot = self.session.snapshot()
            _show(describe(snapshot.cluster, snapshot.run))
            _tell_of_detached_runs(self.session.get().runs_folder if self.session.exists else None)

    @cell_magic("distribute")  # type: ignore[arg-type]  # annotated for line magics only
    def distribute_cell(self, line: str, cell: str) -> Any:
        """Run the cell on every engine of the cluster (``%%distribute --help`` lists the options)."""
        try:
            options = parse_cell_line(line, view=self.view)
        except HelpRequested as asked:
            _show(asked)
            return None
        for sentence in renamed(line):
            CellOutput().say(sentence)
        from ..analysis.names import find_names

        shell = self.shell
        assert shell is not None
        source, filename, tree = _compiled(cell, _number(shell), shell)
        if options.preview:
            _show(preview_text(tree, shell.user_ns))
            return None
        names = find_names(tree)
        if options.vary:
            value = self._try(options, cell, source, filename, tree, names)
            return None if is_silenced(source, tree) else value
        if not options.detach:  # it has a process of its own, which starts its engines
            self.session.begin_cluster(options.cluster)
        with interrupted_before_the_cell("while the cell's values were packed"):
            bundle = self._packed(options, names)
        output = CellOutput(self._run_view(options.view, at_once=_seems_to_train(cell, bundle.tracked)))
        origin, result = origin_of_cell(shell), None
        try:
            with busy(shell):
                result = self.session.get().submit(source, bundle, options, cell=cell, origin=origin, filename=filename, output=output)
            value = self._bring_home(result, bundle.tracked, bundle.left_out, filename, output)
            return None if is_silenced(source, tree) else value
        except BaseException:
            del result, bundle  # an error that is shown keeps this frame, until the next one or longer
            give_back()  # here alone: it takes its time where there are many small objects, and a cell that has failed is followed by none
            raise

    def complete(self, line: str) -> list[str]:
        """Return what Tab offers at the end of a line of ours."""
        names = self.session.run_names
        return completions(line, runs=lambda: names_to_offer(names()), detached=lambda: [run.run_id for run in unfollowed(DEFAULT_FOLDER)])

    def live_view(self) -> RunView:
        """Return what shows a run whose cell is no ``%%distribute`` cell."""
        return self._run_view(self.view, at_once=True)

    def _run_view(self, view: View, *, at_once: bool) -> RunView:
        return RunView(view, at_once=at_once, has_extension=lambda: self.session.telemetry.num_listeners > 0)

    def _packed(self, options: RunOptions, names: CellNames) -> Bundle:
        """Return the values of a cell."""
        shell = self.shell
        assert shell is not None
        with Interrupts(wake=lambda: None) as early:  # half of PyTorch cannot be imported again
            from ..capture.bundle import pack
        if early.count:
            raise KeyboardInterrupt
        _check_split(options.split, names, shell.user_ns)
        return pack(names, shell.user_ns)

    def _try(self, options: RunOptions, cell: str, source: str, filename: str, tree: ast.Module, names: CellNames) -> Any:
        """Run a cell with each of several values side by side, and bring home what the best trial has made."""
        from .trials import TrialsCell

        shell = self.shell
        assert shell is not None
        _check_split(options.split, names, shell.user_ns)
        tried = TrialsCell(
            source=source,
            filename=filename,
            tree=tree,
            cell=cell,
            origin=origin_of_cell(shell),
            names=names,
            cells=_cell_names(shell, filename),
        )
        with busy(shell):
            trials = tried.run(self.session.get(), options, shell.user_ns)
        value = None
        if trials.best is not None and trials.best.result is not None:
            value = self._bring_home(trials.best.result, list(trials.best.tracked), {}, filename, CellOutput())
        if trials.interrupted:
            raise CellInterrupted(["KeyboardInterrupt: The trials were stopped."])
        return value

    def _preview(self, number: int | None) -> None:
        """Show what a cell that was run, the last distributed one by default, would send now."""
        shell = self.shell
        assert shell is not None
        number, cell = cell_to_preview(shell.history_manager.input_hist_raw, number)  # type: ignore[union-attr]
        _, _, tree = _compiled(cell, number, shell)
        _show(f"Cell [{number}]\n\n{preview_text(tree, shell.user_ns)}")

    def _plan(self, number: int | None, cluster: ClusterOptions) -> None:
        """Show what a cell that was run, the last distributed one by default, would take on engines."""
        shell = self.shell
        assert shell is not None
        number, cell = cell_to_preview(shell.history_manager.input_hist_raw, number)  # type: ignore[union-attr]
        _, _, tree = _compiled(cell, number, shell)
        _show(f"Cell [{number}]\n\n{plan_text(tree, shell.user_ns, cluster)}")

    def _go_on(self, command: LineCommand) -> None:
        """Go on with a run, or follow it, and put what its cell began with and what it made of it into the notebook."""
        shell = self.shell
        assert shell is not None
        output = CellOutput(self.live_view())
        session = self.session.get()
        with busy(shell):
            if command.action == "attach":
                result, packed = session.attach(command.run, trusted=command.trusted, output=output)
            else:
                result, packed = session.resume(command.run, command.cluster, step=command.step, trusted=command.trusted, output=output)
        self.take(result, packed, output)

    def take(self, result: RunResult, packed: Packed, output: CellOutput) -> None:
        """Put what a cell of another kernel, or of the record, began with and what it made of it into the notebook."""
        from ..capture.bundle import unpack
        from ..serialization.pickler import Unpacker
        from .results import device_here

        shell = self.shell
        assert shell is not None
        task = result.task
        values, tracked = unpack(Unpacker(packed, namespace=shell.user_ns, device_for=device_here))
        shell.user_ns.update(values)
        keep_text(task.filename, task.source)
        try:
            self._bring_home(result, tracked, {}, task.filename, output)
        finally:
            del result, packed, values, tracked

    def _bring_home(self, result: RunResult, tracked: list[object], left_out: dict[str, str], filename: str, output: CellOutput) -> Any:
        """Do to the notebook what the cell did on the engines, and raise what it raised there."""
        from .results import apply_outcome
        from .tracebacks import cell_error, ended

        shell = self.shell
        assert shell is not None
        value = None
        with Interrupts(wake=lambda: None) as late:  # half of the weights would be of no use
            if result.first is not None:
                value, unread = apply_outcome(result.first, result.returned, tracked, shell.user_ns)
                # After an error of one rank alone the batches of that moment stay behind; lines about them would hide the error.
                for name, reason in result.first.not_returned.items() if result.first.failure is None else ():
                    output.say(f"{name!r} stays on the engines, it cannot be sent back: {reason}")
                for name, reason in unread.items():
                    output.say(f"{name!r} stays on the engines, it cannot be read here: {reason}")
                if result.first.states_missing:
                    output.say(_missing(result.first, result.task.strategy.name))
                if result.first.surroundings is not None and (withheld := result.first.surroundings.withheld):
                    output.say(f"Secrets are not kept on disk: the notebook does not get {', '.join(withheld)}, which the cell has set.")
            result.taken()
        error: BaseException | None = result.lost
        if error is None:
            error = raised = cell_error(result.ends, cells=_cell_names(shell, filename), left_out=left_out)
            if result.interrupted or late.count:
                stopped = [f"KeyboardInterrupt: {_stopped(result.first)}", *ended(result.ends)]
                error = CellInterrupted(raised.lines if raised is not None else stopped)
            del raised
        if error is not None:
            # An error has the frames that it went through. If those had it in turn, both, and all that the cell was sent and sent back,
            # would stay until Python next looks for circles.
            del result, tracked
            try:
                raise error
            finally:
                del error
        if result.first is not None and result.first.stopped:
            output.say(_stopped(result.first))
        return value


def _seems_to_train(cell: str, tracked: Iterable[object]) -> bool:
    """Return whether a cell, or a function that goes with it, has a backward pass in its text: it will then have a curve to show."""
    return any(".backward(" in text for text in (cell, *sources_of(tracked).values()))


def _stopped(first: Outcome | None) -> str:
    """Return where a run was stopped."""
    if first is None:
        return "Stopped. The notebook's objects are as they were before the cell."
    if first.from_snapshot:
        return f"Stopped. The notebook has the state of step {first.steps}, from the last snapshot."
    if not first.steps:
        return "Stopped. No step was finished."
    return f"Stopped after step {first.steps}; the notebook has the weights trained so far."


def _missing(first: Outcome, strategy: str) -> str:
    """Return what there is instead where engines have left with their parts of the optimizers."""
    what = f"all state is that of step {first.steps}" if first.from_snapshot else "that shard is as it was before the cell"
    return f"Engines that left held a shard of the optimizer state (`--strategy {strategy}`): {what}."


def _show(text: object) -> None:
    CellOutput().stream("stdout", f"{text}\n")


def _check_split(split: Iterable[str], names: Iterable[str], namespace: dict[str, Any]) -> None:
    """Raise a `UsageError` where a name of ``--split`` is not a tensor that the cell uses."""
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


def _compiled(cell: str, number: int, shell: InteractiveShell) -> tuple[str, str, ast.Module]:
    """Return the text of a cell as Python with the line of the magic left empty, the file that it counts as, and its tree."""
    source = "\n" + shell.transform_cell(cell)
    filename = shell.compile.cache(source, number)
    keep_text(filename, source)
    return source, filename, _parsed(source, filename, shell)


def _parsed(source: str, filename: str, shell: InteractiveShell) -> ast.Module:
    from ..errors import CellError

    try:
        tree = ast.parse(source, filename)
        compile(source, filename, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except SyntaxError as error:
        place = f"{_cell_names(shell, filename)[filename]}, line {error.lineno}"
        lines = [place]
        if error.text:
            lines.append(f"    {error.text.rstrip()}")
            if error.offset:
                lines.append("    " + " " * (error.offset - 1) + "^")
        raise CellError.of("SyntaxError", str(error.msg), lines=[*lines, f"SyntaxError: {error.msg}"], ranks=[]) from None
    return tree


def _number(shell: InteractiveShell) -> int:
    """Return the number of the cell that is running: the shell's own counter may be a cell ahead of it."""
    return len(shell.history_manager.input_hist_parsed) - 1  # type: ignore[union-attr]


def _cell_names(shell: InteractiveShell, current: str) -> dict[str, str]:
    """Return the files that hold the notebook's cells, and what the notebook calls each."""
    numbers = getattr(shell.compile, "_filename_map", {})
    return {filename: f"Cell In[{number}]" for filename, number in numbers.items()} | {current: f"Cell In[{_number(shell)}]"}


def load(shell: InteractiveShell) -> None:
    """Register the magics with `shell`; does nothing where they are."""
    if isinstance(shell.magics_manager.registry.get(DistributeMagics.__name__), DistributeMagics):
        return
    magics = DistributeMagics(shell)
    shell.register_magics(magics)
    shell.configurables.append(magics)  # type: ignore[arg-type]  # for %config; annotated too narrowly
    shell.input_transformers_cleanup.append(_body_for_help)
    explain(DistributeMagics.distribute, DistributeMagics.distribute_cell)
    install(shell, magics.complete)
    magics.session.telemetry.start()
    _tell_of_detached_runs()
    # Beside: it may be gigabytes of shared memory that a kernel has left which was killed together with its guard.
    threading.Thread(target=sweep, name="dtrain-sweep", daemon=True).start()


def _tell_of_detached_runs(folder: Path | None = None) -> None:
    """Say which runs of a folder go on without a kernel, or have ended without one; by default of the notebook's own."""
    folder = folder or DEFAULT_FOLDER
    for run in unfollowed(folder):
        if run.ended:
            _show(f"{run.run_id} finished without a kernel: `%distribute attach {run.run_id}` returns its results.")
        else:
            _show(f"{run.run_id} is still running detached: `%distribute attach {run.run_id}` follows it.")


def unload(shell: InteractiveShell) -> None:
    """Stop the cluster and take the magics away."""
    manager = shell.magics_manager
    magics = manager.registry.pop(DistributeMagics.__name__, None)
    if isinstance(magics, DistributeMagics):
        shell.configurables.remove(magics)  # type: ignore[arg-type]
        magics.session.close()
    if _body_for_help in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.remove(_body_for_help)
    for kind in ("line", "cell"):
        manager.magics[kind].pop("distribute", None)


def _body_for_help(lines: list[str]) -> list[str]:
    """Let ``%%distribute --help`` stand alone: IPython refuses a cell magic without a body before it is asked."""
    if len(lines) == 1 and lines[0].startswith("%%distribute"):
        return [lines[0].rstrip("\n") + "\n", "\n"]
    return lines
