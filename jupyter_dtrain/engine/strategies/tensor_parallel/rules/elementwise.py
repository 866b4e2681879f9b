"""What computes each number by itself, so that a part of the numbers comes to that part of the results."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

_NAMES = """
GELU ReLU ReLU6 SiLU Mish Tanh Sigmoid LogSigmoid ELU SELU CELU LeakyReLU Hardtanh Hardswish Hardsigmoid Hardshrink Softplus Softshrink
Softsign Tanhshrink Threshold Identity Dropout
""".split()  # noqa: SIM905
_MODULES = frozenset(getattr(nn, name) for name in _NAMES)
_FUNCTIONS = (
    *(F.relu, F.gelu, F.silu, F.mish, F.tanh, F.sigmoid, F.elu, F.leaky_relu, F.relu6, F.softplus, F.hardswish, F.selu),
    *(torch.relu, torch.tanh, torch.sigmoid, torch.selu),
)
_ACTIVATIONS = "transformers.activations"
"""The classes of which are all of this kind, but for those that learn something."""


def is_elementwise(what: object) -> bool:
    """Return whether a module or a function is known to compute each number by itself. Dropout draws for all of them."""
    if isinstance(what, nn.Module):
        if "forward" in vars(what) or next(iter(what.parameters()), None) is not None:
            return False
        return type(what) in _MODULES or type(what).__module__ == _ACTIVATIONS
    return any(what is function for function in _FUNCTIONS)
