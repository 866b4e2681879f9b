"""The ``with`` blocks of rewritten code: how a manager is entered, at first and again where a run goes on inside its block."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

from .found_state import Found
from .loop_iterators import key
from .manager_walk import GENERATORS
from .managers import Kept, Recipe, Watched
from .position import read_variables, write_variables


@dataclass
class Again:
    """A manager on the way to where a run goes on.

    Attributes
    ----------
    found : Found
        What it is to find.
    present : Found
        What is to be there when it has been entered.
    variables : dict
        Of the generator that it is made of, those that a snapshot has.
    """

    found: Found
    present: Found
    variables: dict[str, Any]

    def arrive(self, manager: Any, namespace: dict[str, Any]) -> None:
        """Let all be as it is at the place where the run goes on, `manager` having been entered."""
        self.present.set(namespace)
        frame = _frame_of(manager)
        if frame is not None and self.variables:
            write_variables(frame, self.variables, keep=read_variables(frame).keys() - self.variables.keys())


@dataclass
class Managed:
    """A context manager of rewritten code.

    Parameters
    ----------
    manager : context manager
    namespace : dict
    again : Again, optional
    on_entered, on_left : callable
        Called then.
    """

    manager: AbstractContextManager[Any]
    namespace: dict[str, Any]
    again: Again | None
    on_entered: Callable[[Managed], None]
    on_left: Callable[[], object]
    watched: Watched | None = None
    why_not: str = ""

    def __enter__(self) -> Any:
        name = self.manager.func.__name__ if isinstance(self.manager, GENERATORS) else type(self.manager).__name__
        try:
            self.watched = Watched(self.manager, self.namespace)
        except Exception as error:  # of an object that does not let others look at it
            self.why_not = f"what entering {name} may change cannot be looked at ({type(error).__name__}: {error})"
        try:
            value = type(self.manager).__enter__(self.manager)
        finally:
            if self.again is not None:
                self.again.arrive(self.manager, self.namespace)
                self.again = None
        if self.watched is not None and self.watched.has_changed_too_much():
            self.why_not = f"entering {name} has changed more than can be kept to do it again"
        self.on_entered(self)
        return value

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool | None:
        self.on_left()
        return type(self.manager).__exit__(self.manager, kind, error, trace)

    def check(self) -> str:
        """Return what keeps a run from being resumed inside; empty if nothing does."""
        if isinstance(self.manager, ExitStack) and self.manager._exit_callbacks:  # type: ignore[attr-defined]
            return "an ExitStack holds what is to be done at the end of its block"
        return self.why_not

    def state_dict(self, index: int, number: int) -> dict[str, Any]:
        """Return what goes into a snapshot, by keys that no variable has."""
        if self.watched is None:
            return {}
        values: dict[str, Any] = {key(f"found {index}", number): self.watched.found(self.namespace)}
        if (recipe := self.watched.recipe()) is not None:
            values[key(f"manager {index}", number)] = recipe
        frame = _frame_of(self.manager)
        variables = {} if frame is None else read_variables(frame)
        return values | {key(f"variable {index} {name}", number): Kept(value) for name, value in variables.items()}


def again(values: Mapping[str, Any], index: int, number: int, namespace: dict[str, Any]) -> tuple[Again, Recipe | None] | None:
    """Return how a manager is entered again, and how it is made if not by its expression; ``None``: as at first.

    Parameters
    ----------
    values : mapping
        With what :meth:`Managed.state_dict` had returned.
    """
    found: Found | None = values.get(key(f"found {index}", number))
    if found is None:
        return None
    recipe: Recipe | None = values.get(key(f"manager {index}", number))
    present = found.now(namespace)
    if recipe is not None:
        present.contents.extend(recipe.now())
    beginning, end = f"variable {index} ", key("", number)
    variables = {
        name[len(beginning) : -len(end)]: kept.value for name, kept in values.items() if name.startswith(beginning) and name.endswith(end)
    }
    return Again(found, present, variables), recipe


def _frame_of(manager: Any) -> FrameType | None:
    """Return the frame of the generator that a manager is made of."""
    generator: Any = manager.gen if isinstance(manager, GENERATORS) else None
    return None if generator is None else generator.gi_frame
