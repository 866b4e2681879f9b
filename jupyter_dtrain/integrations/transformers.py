"""Restore what Hugging Face's transformers store beside a model: a model's constructor registers which outputs its class can record.

Unpickling calls no constructor. Without the registration, a model would return ``hidden_states=None`` even if asked for them.
"""

from __future__ import annotations

import sys
from typing import Any

from torch import nn

from .base import Integration


def is_pretrained(module: nn.Module) -> bool:
    """Return whether `module` is a model of transformers."""
    models = sys.modules.get("transformers.modeling_utils")
    return models is not None and isinstance(module, getattr(models, "PreTrainedModel", ()))


def reduced_pretrained(model: Any) -> Any:
    """Return the usual reduction of a model, with a setter that registers it."""
    function, args, state, *_ = model.__reduce_ex__(4)
    return function, args, state, None, None, _read


def _read(model: Any, state: dict[str, Any]) -> None:
    if hasattr(model, "__setstate__"):
        model.__setstate__(state)
    else:
        model.__dict__.update(state)
    recording = sys.modules.get("transformers.utils.output_capturing")
    table = getattr(recording, "_CAN_RECORD_REGISTRY", None)
    if table is not None and hasattr(model, "_can_record_outputs"):
        table[model] = model._can_record_outputs


class Transformers(Integration):
    """Unpickled models are registered."""

    objects_go_along = True

    def reduce(self, obj: Any) -> Any:
        """Return a reduction of a model."""
        return reduced_pretrained(obj) if issubclass(type(obj), nn.Module) and is_pretrained(obj) else NotImplemented


INTEGRATION = Transformers()
