"""Notebooks for tests that disturb them: the same as for tests that do not."""

from tests.notebook.conftest import new_notebook

__all__ = ["new_notebook"]
