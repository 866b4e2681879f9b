"""What a library with state of its own tells of itself, so that a cell finds on the engines what the notebook has of it.

One file for each library, with an `Integration` in it that fills in what the library needs; `registry` finds it. A package from outside
brings its own in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol


@dataclass(frozen=True)
class Setting:
    """What a notebook has chosen once and a cell depends on: read in one process, made in another.

    Attributes
    ----------
    get, set : callable
        Return it, as something that can be pickled, and make it. What fails is left out.
    default : object
        What `get` returns where nothing was chosen, also where the library is not imported.
    of_other_ranks : callable, optional
        Returns what becomes of a value for ranks other than 0; by default they have the same.
    """

    get: Callable[[], Any]
    set: Callable[[Any], object]
    default: Any = None
    of_other_ranks: Callable[[Any], Any] | None = None


class Talk(Protocol):
    """By which rank 0 tells the other ranks something."""

    def tell_object(self, topic: str, value: Any) -> None:
        """Tell it to all others. Rank 0 alone."""

    def hear_object(self, topic: str) -> Any:
        """Return what rank 0 tells under that topic."""


@dataclass(frozen=True, kw_only=True)
class RunScope:
    """A cell on one rank, while it runs.

    Attributes
    ----------
    rank : int
    source : str
        The cell, which may be the first to import the library (`analysis.imports.imported_for` does).
    is_jumping : callable
        Whether the cell is on its way to where it goes on: what it begins has begun.
    goes_on : callable
        Whether the cell has been left here to go on from a snapshot: what it ends does not end.
    talk : Talk
    users_line : callable
        Returns the line of the user's code that is being run.
    """

    rank: int
    source: str
    is_jumping: Callable[[], bool]
    goes_on: Callable[[], bool]
    talk: Talk
    users_line: Callable[[], Any]


class Position(Protocol):
    """Where an iteration is that begins now over iterable data of a library, in a loader without workers."""

    def state_dict(self) -> Any:
        """Return the place, to be pickled; ``None``: it is not known."""

    def load_state_dict(self, state: Any) -> bool:
        """Let the iteration begin at `state`; ``False``: it begins with the first row."""

    def starting(self) -> AbstractContextManager[None]:
        """Return what is around the reading of the first batch."""


class Integration:
    """What there is to know of one library. Every method may be left as it is; none is called before the library is imported or named.

    Attributes
    ----------
    settings : mapping of str to Setting
        By name, which is unique within the library.
    displays : mapping of str to callable
        Types of displays that are no displays: what the notebook does with each, called with its content.
    objects_go_along : bool
        Whether all objects in which the library keeps settings go along, those apart that `reduce` has a word on. By default `states`
        alone do.
    """

    settings: ClassVar[Mapping[str, Setting]] = {}
    displays: ClassVar[Mapping[str, Callable[[Any], object]]] = {}
    objects_go_along: ClassVar[bool] = False

    def reduce(self, obj: Any) -> Any:
        """Return how `obj` is pickled, as ``__reduce_ex__`` does; ``NotImplemented`` for what is not the library's. Asked often."""
        del obj
        return NotImplemented

    def process_attributes(self, obj: object) -> frozenset[str]:
        """Return the attributes of `obj` that mean nothing in another process, which are left out of its pickle. Asked often."""
        del obj
        return frozenset()

    def is_found_by_id(self, obj: object) -> bool:
        """Return whether the notebook's `obj` is told of each change at once, so that nothing of it is returned with the results."""
        del obj
        return False

    def position(self, dataset: object) -> Position | None:
        """Return where an iteration over `dataset` is that begins now, if the library can go on there without a row lost or repeated."""
        del dataset
        return None

    def states(self) -> list[object]:
        """Return objects of the library's own that go along with every cell: what it keeps in them is the notebook's there."""
        return []

    def before_cell(self, source: str) -> None:
        """Have ready in the notebook what must not be an engine's, if the cell `source` may need it."""

    def environment_of_host(self, environment: dict[str, str], settings: Mapping[str, Any], source: str) -> dict[str, str]:
        """Return the environment of a detached run's engines, which may outlive what the notebook's processes have started.

        Parameters
        ----------
        environment : dict
            The notebook's.
        settings : mapping
            Values of the library's settings in the notebook, by name.
        source : str
            The cell.
        """
        del settings, source
        return environment

    def run_scope(self, run: RunScope) -> AbstractContextManager[None]:
        """Follow what a cell does with the library on one rank, until the end of the ``with`` block."""
        del run
        return nullcontext()
