"""Which objects are worth a look for tensors in their attributes."""

from __future__ import annotations

from typing import Any

from torch import nn

_NO_HOLDERS = frozenset(("numpy", "pandas", "matplotlib", "sklearn", "builtins", "functools", "IPython", "jupyter_dtrain"))


def may_hold_tensors(value: Any) -> bool:
    """Return whether the attributes of `value` are worth a look."""
    if callable(value) and not isinstance(value, nn.Module):
        return type(value).__module__ == "__main__" and hasattr(value, "__dict__")
    return type(value).__module__.partition(".")[0] not in _NO_HOLDERS and isinstance(getattr(value, "__dict__", None), dict)
