"""Models that the cell scripts or traces: compiled code has their parameters from then on, and reads these past Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.jit import _recursive, _trace

from ....system.patches import patched
from .eligibility import SCRIPTED
from .parameter_store import ParameterStore

_FUNCTIONS: tuple[tuple[Any, str], ...] = (
    (_recursive, "create_script_module"),  # also of a part of a scripted model
    (_trace, "trace_module"),  # which `torch.jit.trace` calls
    (torch.jit, "trace_module"),
)


def keep_scripted(store: ParameterStore, models: Iterable[nn.Module]) -> None:
    """Have parameters that scripted models among `models` share with others not sharded, in these either."""
    for part in (part for model in models for part in model.modules() if isinstance(part, torch.jit.ScriptModule)):
        for parameter in part.parameters():
            store.stay_whole.set(parameter, SCRIPTED)


@contextmanager
def scripted_whole(store: ParameterStore) -> Iterator[None]:
    """Replicate the parameters of a model before ``torch.jit`` gets it, in the ``with`` block. Collective where it does."""

    def of(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            models = [value for value in (*args, *kwargs.values()) if isinstance(value, nn.Module)]
            parameters = [parameter for model in models for parameter in model.parameters()]
            store.replicate(parameters, SCRIPTED)
            for parameter in parameters:
                store.stay_whole.set(parameter, SCRIPTED)
            return function(*args, **kwargs)

        return called

    with ExitStack() as stack:
        for owner, name in _FUNCTIONS:
            stack.enter_context(patched(owner, name, of(getattr(owner, name))))
        yield
