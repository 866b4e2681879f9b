"""Which layers are linear, and what they may be given."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.parameter import is_lazy


def is_linear(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Return whether `module` computes ``F.linear`` of its own parameters and nothing else."""
    return (
        isinstance(module, nn.Linear)
        and type(module).forward is nn.Linear.forward
        and "forward" not in vars(module)
        and not isinstance(module, NonDynamicallyQuantizableLinear)  # of attention, which reads its weight
        and isinstance(module._parameters.get("weight"), nn.Parameter)
        and not is_lazy(module.weight)
    )


def is_transposed(module: nn.Module) -> bool:
    """Return whether `module` is a linear layer whose weight is transposed, as GPT-2 has them in Hugging Face's transformers."""
    kind = type(module)
    return f"{kind.__module__}.{kind.__qualname__}" == "transformers.pytorch_utils.Conv1D" and "forward" not in vars(module)


def is_value(given: Any, size: int) -> bool:
    """Return whether `given` is what a linear layer of so many columns may be given."""
    return type(given) in (torch.Tensor, nn.Parameter) and not given.is_nested and given.dim() > 0 and given.shape[-1] == size
