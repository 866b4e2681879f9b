"""Models that arrived with new parameters, which the notebook and its optimizers do not share.

A class that pickles itself as an archive is usually sent by its attributes instead (``serialization/archives.py``). If these cannot be
pickled, the archive is sent. What the cell trains then never reaches the notebook, which the user must be told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from ...serialization.archives import has_a_way_of_its_own


class Rebuilt:
    """Parameters of arrived modules that were not sent as objects of their own.

    Parameters
    ----------
    tracked : iterable of object
        Objects that came from the notebook.
    """

    def __init__(self, tracked: Iterable[object]) -> None:
        tracked = list(tracked)
        known = {id(obj) for obj in tracked}
        holders = (obj for obj in tracked if isinstance(obj, nn.Module) or has_a_way_of_its_own(type(obj)))
        parts = ((holder, part) for holder in holders for part in _modules_made_for(holder, known))
        self._own = [(holder, p, p._version) for holder, part in parts for p in part.parameters() if id(p) not in known]

    def trained(self, names: Mapping[str, Any]) -> str | None:
        """Return a message with the modules of which the cell has trained such parameters, by their `names`; ``None`` if there are none."""
        found = {id(holder): holder for holder, p, version in self._own if p.grad is not None or p._version != version}
        if not found:
            return None
        called = [
            next((f"{name!r}" for name, obj in names.items() if obj is holder), f"a {type(holder).__name__}") for holder in found.values()
        ]
        which = ", ".join(dict.fromkeys(called))
        return (
            f"What the cell has trained of {which} stays on the engines: its class pickles it as a copy that shares no parameters with the "
            "notebook's, and its attributes cannot be sent. Make it, and its optimizer, inside the cell."
        )


def _modules_made_for(holder: Any, known: set[int]) -> Iterator[nn.Module]:
    """Yield `holder` if it is a module with parameters that were not sent, and the modules in it that were not sent."""
    if isinstance(holder, torch.jit.ScriptModule):
        return
    held = vars(holder) if hasattr(holder, "__dict__") else {}
    if isinstance(holder, nn.Module):
        if any(p is not None and id(p) not in known for p in holder._parameters.values()):
            yield holder
        held = holder._modules
    for part in list(held.values()):
        if isinstance(part, nn.Module) and id(part) not in known and not isinstance(part, torch.jit.ScriptModule):
            yield part
