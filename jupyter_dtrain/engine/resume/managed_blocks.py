"""The ``with`` blocks of rewritten code: how a manager is entered, and entered again where a run resumes inside its block."""

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
    """A manager that is entered again on the path of a jump.

    Attributes
    ----------
    found : Found
        The state that it is to find.
    present : Found
        The state to restore when it has been entered.
    variables : dict
        The saved variables of its generator.
    """

    found: Found
    present: Found
    variables: dict[str, Any]

    def arrive(self, manager: Any, namespace: dict[str, Any]) -> None:
        """Restore the state at the position, after `manager` has been entered."""
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
        Called when it is entered and left.
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
        """Return why a run cannot be resumed inside; empty if it can."""
        if isinstance(self.manager, ExitStack) and self.manager._exit_callbacks:  # type: ignore[attr-defined]
            return "an ExitStack holds what is to be done at the end of its block"
        return self.why_not

    def state_dict(self, index: int, number: int) -> dict[str, Any]:
        """Return the state for a snapshot, by keys that are no variable names."""
        if self.watched is None:
            return {}
        values: dict[str, Any] = {key(f"found {index}", number): self.watched.found(self.namespace)}
        if (recipe := self.watched.recipe()) is not None:
            values[key(f"manager {index}", number)] = recipe
        frame = _frame_of(self.manager)
        variables = {} if frame is None else read_variables(frame)
        return values | {key(f"variable {index} {name}", number): Kept(value) for name, value in variables.items()}


def again(values: Mapping[str, Any], index: int, number: int, namespace: dict[str, Any]) -> tuple[Again, Recipe | None] | None:
    """Return how a manager is entered again, and how it is made if not by its expression; ``None``: as the first time.

    Parameters
    ----------
    values : mapping
        Contains a :meth:`Managed.state_dict`.
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
    """Return the frame of a manager's generator."""
    generator: Any = manager.gen if isinstance(manager, GENERATORS) else None
    return None if generator is None else generator.gi_frame
