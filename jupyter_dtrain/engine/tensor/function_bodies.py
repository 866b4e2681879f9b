"""Copies of Python functions of ``torch.nn.functional`` that do not dispatch to ``__torch_function__`` as a whole.

The originals pass themselves to ``__torch_function__``. The copies run their body, so each operation in it is dispatched by itself.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch.nn.functional as F


def _seen_within(function: Any) -> FunctionType:
    names: dict[str, Any] = {name: lambda *_: False for name in vars(F) if name.startswith("has_torch_function")}
    return FunctionType(function.__code__, {**vars(F), **names}, function.__name__, function.__defaults__, function.__closure__)


BODIES = {function: _seen_within(function) for function in (F.gumbel_softmax, F.multi_head_attention_forward)}
