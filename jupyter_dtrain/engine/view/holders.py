"""Which objects are worth a look for tensors in their attributes."""

from __future__ import annotations

from typing import Any

from torch import nn

from ...capture.slots import SlotValues, attribute_holders

_NO_HOLDERS = frozenset(("numpy", "pandas", "matplotlib", "sklearn", "builtins", "functools", "IPython", "jupyter_dtrain"))


def attributes_worth_a_look(value: Any) -> list[dict[str, Any] | SlotValues]:
    """Return what holds the attributes of `value`, empty where they are not worth a look."""
    module = type(value).__module__
    if callable(value) and not isinstance(value, nn.Module):
        worth = module == "__main__"
    else:
        worth = module.partition(".")[0] not in _NO_HOLDERS
    return attribute_holders(value) if worth else []
