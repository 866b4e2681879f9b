"""Functions of ``torch.nn.functional`` that are written in Python, so that what they call is seen one by one.

They hand themselves over as a whole to whoever overrides operations of a tensor.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch.nn.functional as F


def _seen_within(function: Any) -> FunctionType:
    names: dict[str, Any] = {name: lambda *_: False for name in vars(F) if name.startswith("has_torch_function")}
    return FunctionType(function.__code__, {**vars(F), **names}, function.__name__, function.__defaults__, function.__closure__)


BODIES = {function: _seen_within(function) for function in (F.gumbel_softmax, F.multi_head_attention_forward)}
