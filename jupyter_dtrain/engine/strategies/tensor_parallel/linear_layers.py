"""Which modules are linear layers, and which inputs they take."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.parameter import is_lazy


def is_linear(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Return whether the forward of `module` is ``F.linear`` with its own parameters, and nothing else."""
    return (
        isinstance(module, nn.Linear)
        and type(module).forward is nn.Linear.forward
        and "forward" not in vars(module)
        and not isinstance(module, NonDynamicallyQuantizableLinear)  # of attention, which reads its weight
        and isinstance(module._parameters.get("weight"), nn.Parameter)
        and not is_lazy(module.weight)
    )


def is_transposed(module: nn.Module) -> bool:
    """Return whether `module` is a linear layer with a transposed weight (``Conv1D`` of GPT-2 in Hugging Face's transformers)."""
    kind = type(module)
    return f"{kind.__module__}.{kind.__qualname__}" == "transformers.pytorch_utils.Conv1D" and "forward" not in vars(module)


def is_value(given: Any, size: int) -> bool:
    """Return whether `given` is a valid input of a linear layer with so many input features."""
    return type(given) in (torch.Tensor, nn.Parameter) and not given.is_nested and given.dim() > 0 and given.shape[-1] == size
