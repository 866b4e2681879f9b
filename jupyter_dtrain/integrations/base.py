"""The interface by which a library with state of its own makes the notebook's state available to cells on engines.

One file for each library defines an `Integration`, which `registry` finds. Other packages provide integrations in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol


@dataclass(frozen=True)
class Setting:
    """A setting that a notebook has chosen and a cell depends on: read in one process, set in another.

    Attributes
    ----------
    get, set : callable
        Return the setting as a picklable value, and apply it. A setting is skipped if either fails.
    default : object
        What `get` returns if nothing was chosen, or if the library is not imported.
    of_other_ranks : callable, optional
        Maps a value to that of ranks other than 0; by default they have the same.
    """

    get: Callable[[], Any]
    set: Callable[[Any], object]
    default: Any = None
    of_other_ranks: Callable[[Any], Any] | None = None


class Talk(Protocol):
    """Channel from rank 0 to the other ranks."""

    def tell_object(self, topic: str, value: Any) -> None:
        """Send an object to all other ranks. Rank 0 only."""

    def hear_object(self, topic: str) -> Any:
        """Return the object that rank 0 sends under `topic`."""


@dataclass(frozen=True, kw_only=True)
class RunScope:
    """A running cell on one rank.

    Attributes
    ----------
    rank : int
    source : str
        The cell, which may be the first to import the library (`analysis.imports.imported_for` does).
    is_jumping : callable
        Returns whether the cell is jumping to where it resumes: what it enters on the way has begun already.
    goes_on : callable
        Returns whether the cell is left to resume from a snapshot: what it leaves must not end.
    talk : Talk
    users_line : callable
        Returns the line of the user's code that is being executed.
    """

    rank: int
    source: str
    is_jumping: Callable[[], bool]
    goes_on: Callable[[], bool]
    talk: Talk
    users_line: Callable[[], Any]


class Position(Protocol):
    """Position of an iteration, just beginning, over a library's iterable data set, in a loader without workers."""

    def state_dict(self) -> Any:
        """Return the position as a picklable value; ``None`` if it is unknown."""

    def load_state_dict(self, state: Any) -> bool:
        """Start the iteration at `state`; return ``False`` if it starts with the first row instead."""

    def starting(self) -> AbstractContextManager[None]:
        """Return a context for reading the first batch."""


class Integration:
    """Integration of one library. Every method has a default; none is called before the library is imported or mentioned.

    Attributes
    ----------
    settings : mapping of str to Setting
        Settings by name, which is unique within the library.
    displays : mapping of str to callable
        Handlers of display types that carry data to the notebook; each is called with the content.
    objects_go_along : bool
        Whether all objects in which the library keeps settings are sent, except those that `reduce` handles. By default only `states`
        are.
    """

    settings: ClassVar[Mapping[str, Setting]] = {}
    displays: ClassVar[Mapping[str, Callable[[Any], object]]] = {}
    objects_go_along: ClassVar[bool] = False

    def reduce(self, obj: Any) -> Any:
        """Return a reduction of `obj`, as ``__reduce_ex__`` does; ``NotImplemented`` for objects of others. Called often."""
        del obj
        return NotImplemented

    def process_attributes(self, obj: object) -> frozenset[str]:
        """Return the attributes of `obj` that are specific to a process and omitted from its pickle. Called often."""
        del obj
        return frozenset()

    def is_found_by_id(self, obj: object) -> bool:
        """Return whether the notebook's `obj` gets each change at once, so that its state is not returned with the results."""
        del obj
        return False

    def position(self, dataset: object) -> Position | None:
        """Return the position of an iteration over `dataset` that begins now, if it can resume without losing or repeating a row."""
        del dataset
        return None

    def states(self) -> list[object]:
        """Return objects of the library that are sent with every cell, so that its state there is the notebook's."""
        return []

    def before_cell(self, source: str) -> None:
        """Start in the notebook what must not belong to an engine, if the cell `source` may need it."""

    def environment_of_host(self, environment: dict[str, str], settings: Mapping[str, Any], source: str) -> dict[str, str]:
        """Return the environment of a detached run's engines, which may outlive processes that the notebook has started.

        Parameters
        ----------
        environment : dict
            Environment of the notebook.
        settings : mapping
            The notebook's values of the library's settings, by name.
        source : str
            The cell.
        """
        del settings, source
        return environment

    def run_scope(self, run: RunScope) -> AbstractContextManager[None]:
        """Follow a cell's use of the library on one rank, until the end of the ``with`` block."""
        del run
        return nullcontext()
