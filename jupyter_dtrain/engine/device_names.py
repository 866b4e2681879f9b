"""Names of the notebook that hold a device mean the rank's own on the engine."""

from __future__ import annotations

from typing import Any

import torch


def on_device(values: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Return `values` with every GPU that a name holds (``torch.device`` or a text like ``"cuda:0"``) replaced by `device`."""

    def convert(value: Any) -> Any:
        if isinstance(value, torch.device) and value.type == "cuda":
            return device
        if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
            return str(device)
        return value

    return {name: convert(value) for name, value in values.items()}
