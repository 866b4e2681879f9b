"""A text stream in the place of another one, of which a subclass says what becomes of the text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, TextIO


class StreamProxy(ABC):
    """Replaces `stream`; attributes that it has not are those of the stream, as a library may use its file."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @abstractmethod
    def write(self, text: str) -> int:
        """Write `text`, and return its length."""

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
