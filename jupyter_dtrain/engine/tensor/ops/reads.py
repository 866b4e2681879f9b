"""Rules of operations that read values, and so need the full tensor."""

from __future__ import annotations

from typing import Any

import torch

from ..placement_types import GlobalTensor, Partial
from .dispatch import Rules
from .kept_fulls import root_of

_LENDING = frozenset((torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.__dlpack__))


def read(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation on full tensors, and record it if NumPy or DLPack then shares their memory."""
    if args and isinstance(args[0], GlobalTensor) and func in _LENDING:
        result = rules.on_wholes(func, args, kwargs)
        rules.note_lent(root_of(args[0]))
        return result
    return rules.on_wholes(func, args, kwargs)


def read_number(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Read a value as a Python number or text. It needs no graph, so a cached value will do."""
    tensor = args[0]
    value = rules.exchange.value(tensor) if isinstance(tensor.placement, Partial) else rules.read_value(tensor)
    return func(value, *rules.full_tensor(args[1:]), **rules.full_tensor(kwargs))


def read_text(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the text of the full tensor, with ``requires_grad`` or the ``grad_fn`` as on one process."""
    text: str = read_number(rules, func, args, kwargs)
    with torch._C.DisableTorchFunctionSubclass():
        node = args[0].grad_fn
        leaf = args[0].requires_grad and node is None
        while node is not None and type(node).__name__ == "AliasBackward0":  # added by `from_local`
            node = node.next_functions[0][0]
    if "tensor(" in text and text.endswith(")") and (leaf or node is not None):
        return f"{text[:-1]}, {'requires_grad=True' if leaf else f'grad_fn=<{type(node).__name__}>'})"
    return text
