"""Copies of data loaders, in which something is another's: the user's own stay what they are."""

from __future__ import annotations

import copy
from typing import Any

from torch.utils.data import DataLoader


def copy_of(loader: DataLoader[Any], **changes: Any) -> DataLoader[Any]:
    """Return a copy of `loader`, with these attributes changed and no iterator of its own yet."""
    made = copy.copy(loader)
    # DataLoader forbids to set some of them after it was made; the copy has made nothing yet.
    made.__dict__.update(changes, _iterator=None)
    return made
