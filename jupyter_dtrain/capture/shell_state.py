"""What magics in a cell need of the notebook's IPython shell: the notebook's own magics, and the folders that `%cd` has been in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from IPython.core.alias import Alias
from IPython.core.getipython import get_ipython
from IPython.core.magic import MagicAlias

from ..serialization.library_changes import is_the_notebooks

FOLDERS = "_dh"
"""Name of the list of visited folders in a notebook."""

_arrived: dict[tuple[str, str], Callable[..., Any]] = {}


class OwnMagics:
    """Magics that the notebook has registered, to be sent with a cell that uses them.

    Attributes
    ----------
    held : dict of tuple to callable
        By the kind ("line" or "cell") and the name.
    """

    def __init__(self, held: dict[tuple[str, str], Callable[..., Any]]) -> None:
        self.held = held

    def __reduce__(self) -> Any:
        return OwnMagics, ({},), self.held, None, None, _arrive


def _arrive(magics: OwnMagics, held: dict[tuple[str, str], Callable[..., Any]]) -> None:
    magics.held = held
    _arrived.update(held)


def own_magics(names: Collection[str]) -> list[OwnMagics]:
    """Return the notebook's own magics and aliases with these names, if there are any."""
    shell: Any = get_ipython()
    if shell is None or not names:
        return []
    magics = shell.magics_manager.magics
    found = {(kind, name): magics[kind][name] for kind in ("line", "cell") for name in sorted(names) if name in magics[kind]}
    for alias in [magic for magic in found.values() if isinstance(magic, MagicAlias)]:
        kind, name = alias.magic_kind, alias.magic_name
        found[kind, name] = magics[kind].get(name)
    own = {key: function for key, function in found.items() if isinstance(function, Alias | MagicAlias) or is_the_notebooks(function)}
    return [OwnMagics(own)] if own else []


@contextmanager
def shell_of_notebook(shell: Any, namespace: dict[str, Any]) -> Iterator[None]:
    """Let magics in the cell (``%time``, ``%cd``) use its `namespace`, and the notebook's own ones be found, in the ``with`` block."""
    before, magics = shell.user_ns, shell.magics_manager.magics
    folders = before.get(FOLDERS)
    hidden = {**shell.user_ns_hidden}
    shell.user_ns_hidden.update({name: namespace[name] for name in ("get_ipython",) if name in namespace})  # from ``%who``
    brings_folders = FOLDERS not in namespace and folders is not None
    if brings_folders:
        namespace[FOLDERS] = folders
    replaced = {(kind, name): magics[kind].get(name) for kind, name in _arrived}
    for (kind, name), function in _arrived.items():
        magics[kind][name] = function
    _arrived.clear()
    shell.user_ns = namespace
    try:
        yield
    finally:
        shell.user_ns = before
        shell.user_ns_hidden.clear()
        shell.user_ns_hidden.update(hidden)
        if brings_folders and namespace.get(FOLDERS) is folders:
            del namespace[FOLDERS]
        for (kind, name), function in replaced.items():
            if function is None:
                magics[kind].pop(name, None)
            else:
                magics[kind][name] = function


def visited() -> tuple[list[Any], list[str]]:
    """Return the folders that `%cd` has been in, and those that `%popd` goes back to."""
    shell: Any = get_ipython()
    return [*shell.user_ns[FOLDERS]], [*shell.dir_stack]


def set_visited(both: tuple[list[Any], list[str]]) -> None:
    """Set these folders in this process's shell."""
    shell: Any = get_ipython()
    shell.user_ns[FOLDERS][:], shell.dir_stack[:] = both
