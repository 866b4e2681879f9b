"""The state of objects, names, settings and random streams at one moment, and how it is restored."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import is_
from typing import Any, NamedTuple

import numpy as np
import torch

from ...capture.process_state import ProcessSettings
from ...capture.random_state import RandomState
from ...serialization.copy_restore import ABSENT, Contents, attributes_of, restore
from ...serialization.item_restore import is_frame, items_of
from ..forward.state import same, same_arrays


@dataclass
class Found:
    """The state of several things at one moment.

    Attributes
    ----------
    contents : list of (object, Contents)
    names : Contents
        The notebook's namespace.
    settings : ProcessSettings, optional
    random_state : RandomState, optional
    """

    contents: list[tuple[Any, Contents]]
    names: Contents
    settings: ProcessSettings | None
    random_state: RandomState | None

    def now(self, namespace: dict[str, Any]) -> Found:
        """Return the present state of the same things."""
        return Found(
            [
                (obj, same_parts(before, copy_of(obj) if before.items is not None else None, attributes_of(obj)))
                for obj, before in self.contents
            ],
            same_parts(self.names, None, namespace),
            None if self.settings is None else ProcessSettings.now(),
            None if self.random_state is None else RandomState.now(),
        )

    def set(self, namespace: dict[str, Any]) -> None:
        """Restore the state."""
        for obj, contents in self.contents:
            restore(obj, replace(contents, attributes=dict(contents.attributes)))
        for name in self.names.removed:
            namespace.pop(name, None)
        namespace.update(self.names.attributes)
        if self.settings is not None:
            replace(self.settings.changed_from(ProcessSettings.now()), gradients=torch.is_grad_enabled()).set()
        if self.random_state is not None:
            self.random_state.set()


def same_parts(before: Contents, items: Any, attributes: dict[str, Any] | None) -> Contents:
    """Return `items`, and of `attributes` those that `before` is about."""
    names, attributes = [*before.attributes, *before.removed], attributes or {}
    return Contents(
        items, {name: attributes[name] for name in names if name in attributes}, [name for name in names if name not in attributes]
    )


class Part(NamedTuple):
    """The state of one object."""

    obj: Any
    items: Any
    attributes: dict[str, Any] | None

    def before(self) -> Contents | None:
        """Return the parts of the state that differ now."""
        items = self.items if self.items is not None and not _is_same(self.obj, self.items) else None
        now, old = attributes_of(self.obj) or {}, self.attributes or {}
        gone = {name: value for name, value in old.items() if now.get(name, ABSENT) is not value}
        new = [name for name in now if name not in old]
        return Contents(items, gone, new) if items is not None or gone or new else None


def copy_of(obj: Any) -> Any:
    """Return a copy of what `obj` contains beside its attributes."""
    if isinstance(obj, torch.Tensor):
        return obj.detach().clone()
    if isinstance(obj, np.ndarray):
        return obj.copy()
    return items_of(obj)


def _is_same(obj: Any, items: Any) -> bool:
    if isinstance(obj, torch.Tensor):
        return same(obj, items)
    if isinstance(obj, np.ndarray):
        return same_arrays(obj, items)
    now = items_of(obj)
    if isinstance(now, list):
        return len(now) == len(items) and all(map(is_, now, items))
    try:
        return bool(now.equals(items)) if is_frame(now) else bool(now == items)
    except (RuntimeError, ValueError):  # states of generators that have arrays in them
        return False
