"""Notebooks for tests that disturb them: the same as for tests that do not."""

import pytest

from tests.faults.disturbed import Disturbed
from tests.notebook.conftest import new_notebook

__all__ = ["new_notebook"]


@pytest.fixture(scope="package")
def two(new_notebook):
    return Disturbed(new_notebook(), 2)


@pytest.fixture(scope="package")
def three(new_notebook):
    return Disturbed(new_notebook(), 3)


@pytest.fixture(scope="package")
def four(new_notebook):
    return Disturbed(new_notebook(), 4)
