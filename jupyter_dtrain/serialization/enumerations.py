"""Enumerations of the notebook, with what their members have beside a value: the planets' masses in Python's own example.

cloudpickle makes the members from their values before the class has its ``__init__``, so that the attributes which that sets are missing.
"""

from __future__ import annotations

from enum import Enum
from types import FunctionType
from typing import Any

import cloudpickle

from .class_reducers import ClassState, class_state, set_class_state

_ENUMS_OWN = frozenset({"_value_", "_name_", "__objclass__", "_sort_order_", "_inverted_"})


def reduced_enumeration(obj: Any) -> Any:
    """Return the reduce value of an enumeration that is pickled by value, else ``NotImplemented``."""
    if not (isinstance(obj, type) and issubclass(obj, Enum)) or cloudpickle.cloudpickle._should_pickle_by_reference(obj):
        return NotImplemented
    make, arguments, (attributes, _), *_ = cloudpickle.cloudpickle._dynamic_class_reduce(obj)
    state = class_state(obj, attributes)
    if isinstance(getattr(obj, "_new_member_", None), FunctionType):  # its members are not to be found by their values while it is made
        return make, arguments, (state, []), None, None, _set_state
    # The members themselves: what a cell sets of them comes home.
    members = [(member, {name: value for name, value in vars(member).items() if name not in _ENUMS_OWN}) for member in obj]
    return make, arguments, (state, members), None, None, _set_state


def _set_state(kind: type[Enum], both: tuple[ClassState, list[tuple[Enum, dict[str, Any]]]]) -> None:
    state, members = both
    set_class_state(kind, state)
    for member, attributes in members:
        vars(member).update(attributes)
