"""What ``--shard`` says: how parameters are divided, by the names that they or their modules have in a model."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, get_args

from .errors import UsageError

How = Literal["col", "row", "no"]


@dataclass(frozen=True)
class ShardPattern:
    """How some parameters are divided.

    Attributes
    ----------
    pattern : str
        Of their names or those of their modules, as ``fnmatch`` has it: ``*`` stands for dots too.
    how : {"col", "row", "no"}
        ``col``: along dim 0, by what a linear layer comes to; ``row``: along dim 1, by what it is given; ``no``: not at all.
    """

    pattern: str
    how: How

    @classmethod
    def parse(cls, text: str) -> ShardPattern:
        """Return that of ``*.experts.*=col``.

        Raises
        ------
        UsageError
        """
        pattern, equals, how = (part.strip() for part in text.rpartition("="))
        if not equals or not pattern or how not in get_args(How):
            raise UsageError(f"--shard {text}: give names and how they are divided, col, row or no, such as '*.experts.*=col'.")
        return cls(pattern, how)  # type: ignore[arg-type]  # it is one of them

    def __str__(self) -> str:
        return f"{self.pattern}={self.how}"

    def matches(self, name: str) -> bool:
        """Return whether a parameter of such a name, or a module that it is in, is meant."""
        parts = name.split(".")
        return any(fnmatchcase(".".join(parts[:end]), self.pattern) for end in range(1, len(parts) + 1))
