"""What Hugging Face's transformers keep beside a model: which outputs its class can record, which a model's constructor enters in a table.

A model that is read from a pickle has not been constructed. It would return ``hidden_states=None``, whatever it is asked for.
"""

from __future__ import annotations

import sys
from typing import Any

from torch import nn

from .base import Integration


def is_pretrained(module: nn.Module) -> bool:
    """Return whether `module` is a model of transformers'."""
    models = sys.modules.get("transformers.modeling_utils")
    return models is not None and isinstance(module, getattr(models, "PreTrainedModel", ()))


def reduced_pretrained(model: Any) -> Any:
    """Return how a model of transformers' reduces: as ever, and then it enters itself in the table."""
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
    """A model that is read from a pickle enters itself in the table."""

    objects_go_along = True

    def reduce(self, obj: Any) -> Any:
        """Return how a model reduces."""
        return reduced_pretrained(obj) if issubclass(type(obj), nn.Module) and is_pretrained(obj) else NotImplemented


INTEGRATION = Transformers()
