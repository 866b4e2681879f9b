"""Notebooks for tests that disturb them: the same as for tests that do not."""

import pytest

from tests.faults.disturbed import Disturbed
from tests.notebook.conftest import module_notebook, new_notebook, nothing_left_running, package_notebook

__all__ = ["module_notebook", "new_notebook", "nothing_left_running", "package_notebook"]


@pytest.fixture(scope="package")
def two(package_notebook):
    return Disturbed(package_notebook(), 2)


@pytest.fixture(scope="package")
def three(package_notebook):
    return Disturbed(package_notebook(), 3)


@pytest.fixture(scope="package")
def four(package_notebook):
    return Disturbed(package_notebook(), 4)
