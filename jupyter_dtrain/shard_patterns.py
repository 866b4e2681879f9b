"""Parse ``--shard``: how parameters are sharded, by the names of the parameters or of their modules in a model."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, get_args

from .errors import UsageError

How = Literal["col", "row", "no"]


@dataclass(frozen=True)
class ShardPattern:
    """How parameters with matching names are sharded.

    Attributes
    ----------
    pattern : str
        Pattern of names of parameters or modules, as in ``fnmatch``: ``*`` matches dots too.
    how : {"col", "row", "no"}
        ``col``: along dim 0, a linear layer's output features; ``row``: along dim 1, its input features; ``no``: not sharded.
    """

    pattern: str
    how: How

    @classmethod
    def parse(cls, text: str) -> ShardPattern:
        """Return the pattern for a text such as ``*.experts.*=col``.

        Raises
        ------
        UsageError
            The text is malformed.
        """
        pattern, equals, how = (part.strip() for part in text.rpartition("="))
        if not equals or not pattern or how not in get_args(How):
            raise UsageError(f"--shard {text}: give names and how they are divided, col, row or no, such as '*.experts.*=col'.")
        return cls(pattern, how)  # type: ignore[arg-type]  # it is one of them

    def __str__(self) -> str:
        return f"{self.pattern}={self.how}"

    def matches(self, name: str) -> bool:
        """Return whether the pattern matches a parameter's name, or the name of a module that contains it."""
        parts = name.split(".")
        return any(fnmatchcase(".".join(parts[:end]), self.pattern) for end in range(1, len(parts) + 1))
