"""``%%distribute`` and ``%distribute`` for IPython, registered by ``%load_ext``.

Users wait for the imports of this module, so each magic imports what it needs on first use: parsers, options, output and views, then torch
and ipyparallel. A test checks the list of what ``%load_ext`` imports.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast, get_args

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from traitlets import TraitError, Unicode, validate

from ..runs.detached_index import DEFAULT_FOLDER, unfollowed
from .lazy import LazySession

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..options import View


@magics_class
class DistributeMagics(Magics):
    """The magics of one IPython shell."""

    view = Unicode("live", help="What cells show of their runs where they do not say it with --view.").tag(config=True)

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell=shell)
        self.session = LazySession()
        self.take_debugger_away: Callable[[], None] = lambda: None

    @validate("view")
    def _known_view(self, proposal: dict[str, Any]) -> str:
        from ..options import View

        if proposal["value"] not in get_args(View):
            raise TraitError(f"DistributeMagics.view = {proposal['value']!r}: choose {' or '.join(map(repr, get_args(View)))}.")
        return cast("str", proposal["value"])

    @line_magic
    def distribute(self, line: str) -> None:
        """Start, show or stop the cluster and its runs (``%distribute --help`` lists what there is)."""
        from .line_magic import LineMagic

        assert self.shell is not None
        LineMagic(self.shell, self.session, cast("View", self.view)).run(line)

    @cell_magic("distribute")  # type: ignore[arg-type]  # annotated for line magics only
    def distribute_cell(self, line: str, cell: str) -> Any:
        """Run the cell on every engine of the cluster (``%%distribute --help`` lists the options)."""
        from .cell_magic import CellMagic

        assert self.shell is not None
        return CellMagic(self.shell, self.session, cast("View", self.view)).run(line, cell)


def load(shell: InteractiveShell) -> None:
    """Register the magics with `shell`, unless they are registered already."""
    if isinstance(shell.magics_manager.registry.get(DistributeMagics.__name__), DistributeMagics):
        return
    magics = DistributeMagics(shell)
    shell.register_magics(magics)
    shell.input_transformers_cleanup.append(_body_for_help)
    _document()
    _complete(shell, magics.session)
    magics.take_debugger_away = _debug_engines(shell, magics.session)
    magics.session.telemetry.start()
    if detached := unfollowed(DEFAULT_FOLDER):
        from .output import show
        from .summary import detached_text

        show(detached_text(detached))
    # On a thread: there may be gigabytes of shared memory left by a kernel that was killed together with its guard.
    threading.Thread(target=_sweep, name="dtrain-sweep", daemon=True).start()


def unload(shell: InteractiveShell) -> None:
    """Stop the cluster and unregister the magics."""
    manager = shell.magics_manager
    magics = manager.registry.pop(DistributeMagics.__name__, None)
    if isinstance(magics, DistributeMagics):
        shell.configurables.remove(magics)  # type: ignore[arg-type]
        magics.session.close()
        magics.take_debugger_away()
    if _body_for_help in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.remove(_body_for_help)
    for kind in ("line", "cell"):
        manager.magics[kind].pop("distribute", None)


def _document() -> None:
    """Make the options the documentation of the magics: IPython calls an object's `getdoc`, if it has one, instead of its docstring."""

    def help_of(magic: str) -> str:
        from . import completion

        return completion.cell_help() if magic == "cell" else completion.line_help()

    cast("Any", DistributeMagics.distribute_cell).getdoc = lambda: help_of("cell")
    cast("Any", DistributeMagics.distribute).getdoc = lambda: help_of("line")


def _debug_engines(shell: InteractiveShell, session: LazySession) -> Callable[[], None]:
    """Let ``%debug`` use the failed rank's frames if the last error came from engines; return a function that undoes this."""
    before, original = vars(shell).get("debugger"), cast("Any", shell.debugger)

    def debugger(force: bool = False) -> None:
        if not force and not shell.call_pdb:
            return
        from .rank_debugger import debug_last_error

        if not debug_last_error(session, shell):
            original(force=force)

    def take_away() -> None:
        if vars(shell).get("debugger") is not debugger:
            return  # another extension has wrapped ours, which now finds no engines
        del vars(shell)["debugger"]
        if before is not None:
            vars(shell)["debugger"] = before

    vars(shell)["debugger"] = debugger
    return take_away


def _complete(shell: InteractiveShell, session: LazySession) -> None:
    """Register Tab completion for the lines of the magics."""

    def completer(_shell: object, event: Any) -> list[str]:
        from .completion import offer

        return offer(session, event.text_until_cursor)

    for magic in ("%distribute", "%%distribute"):
        shell.set_hook("complete_command", completer, str_key=magic)


def _sweep() -> None:
    from ..cluster.folders import sweep

    sweep()


def _body_for_help(lines: list[str]) -> list[str]:
    """Allow ``%%distribute --help`` without a body, which IPython refuses for cell magics."""
    if len(lines) == 1 and lines[0].startswith("%%distribute"):
        return [lines[0].rstrip("\n") + "\n", "\n"]
    return lines
