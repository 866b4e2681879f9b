"""The findings of a check: which object gives other results on a shard of a batch, and which results."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """An object that must not be given a shard of a batch.

    Attributes
    ----------
    kind : str
        Its class, by which it is recognized after going back.
    what : str
        What differs, for the user.
    """

    kind: str
    what: str


class GoBack(BaseException):
    """A difference was found that earlier steps may have had, too: the cell has to resume from the last step that was checked.

    Parameters
    ----------
    findings : tuple of Finding
    checked : int
        Steps up to here are known to be right.
    """

    def __init__(self, findings: tuple[Finding, ...], checked: int) -> None:
        super().__init__(findings, checked)  # pickles make it anew of these
        self.findings, self.checked = findings, checked

    def message(self) -> str:
        """Return the message to the user."""
        names = ", ".join(f"`{shown(finding.kind)}` ({finding.what})" for finding in self.findings)
        return f"{names} gave another result on parts of a batch than on all of it, after step {self.checked}."


def kind_of(value: object) -> str:
    """Return the name by which an object is recognized in another process: of its class, or of a function."""
    named = value if isinstance(value, type) or hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def shown(kind: str) -> str:
    """Return such a name as the user writes it."""
    return kind.rpartition(".")[2] if "<locals>" not in kind else kind.rpartition("<locals>.")[2]
