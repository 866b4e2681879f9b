"""What shows late that it goes by all samples of a batch: a model that starts to keep state, a data set that starts to draw.

What the ranks have computed since then may differ from one process. So the cell ends on the rank that has noticed it, and the run continues
from its last snapshot, on all ranks with full batches for that class.
"""

from __future__ import annotations


class FoundLate(BaseException):
    """Ends the cell on a rank, for the run to continue from its last snapshot with full batches for a class.

    Not an ``Exception``, so that the cell's own handlers do not catch it.

    Parameters
    ----------
    found : object
        An instance of the class.
    why : str
        What has shown it.

    Attributes
    ----------
    kind : str
        The class, by module and name.
    """

    def __init__(self, found: object, why: str) -> None:
        self.kind = name_of_class(found)
        super().__init__(f"{self.kind} {why}")


class KeepsState(FoundLate):
    """A later call of a model has started to keep state of its samples."""

    def __init__(self, model: object) -> None:
        super().__init__(model, "keeps state of its samples, and has kept none before")


class WritesLate(FoundLate):
    """A later call of a model has begun to print, to log or to write a file."""

    def __init__(self, model: object) -> None:
        super().__init__(model, "prints, logs or writes a file, and has not done so before")


class DrawsOtherwise(FoundLate):
    """A later call of a model has drawn for its samples where the first call did not, or the reverse."""

    def __init__(self, model: object) -> None:
        super().__init__(model, "draws random numbers in another order than in its first call")


class DrawsLate(FoundLate):
    """A data set has drawn random numbers for a sample, and has drawn none for the first batch."""

    def __init__(self, dataset: object) -> None:
        super().__init__(dataset, "draws random numbers for its samples, and has drawn none before")


def name_of_class(instance: object) -> str:
    """Return the class of `instance`, by module and name."""
    return f"{type(instance).__module__}.{type(instance).__qualname__}"
