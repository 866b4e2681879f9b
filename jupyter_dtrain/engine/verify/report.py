"""What a check has found: which object comes to something else on a part of a batch, and what of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """An object that is not to be given a part of a batch.

    Attributes
    ----------
    kind : str
        Its class, by which it is known after going back.
    what : str
        What differs, for the user.
    """

    kind: str
    what: str


class GoBack(BaseException):
    """A difference has been found that earlier steps may have had: the cell is to go on from the last step that was checked.

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
        """Return what was found, for the user."""
        names = ", ".join(f"`{shown(finding.kind)}` ({finding.what})" for finding in self.findings)
        return f"{names} gave another result on parts of a batch than on all of it, after step {self.checked}."


def kind_of(value: object) -> str:
    """Return by what an object is known in another process: the name of its class, or of a function."""
    named = value if isinstance(value, type) or hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def shown(kind: str) -> str:
    """Return such a name as the user knows it."""
    return kind.rpartition(".")[2] if "<locals>" not in kind else kind.rpartition("<locals>.")[2]
