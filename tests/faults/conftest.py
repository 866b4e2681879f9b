"""Notebooks for tests that disturb them: the same as for tests that do not."""

import pytest

from tests.faults.disturbed import Disturbed
from tests.notebook.conftest import module_notebook, new_notebook, package_notebook

__all__ = ["module_notebook", "new_notebook", "package_notebook"]


@pytest.fixture(scope="package")
def disturbed():
    """The notebooks that tests share, as far as there are some."""
    return []


@pytest.fixture(scope="package")
def two(package_notebook, disturbed):
    disturbed.append(Disturbed(package_notebook(), 2))
    return disturbed[-1]


@pytest.fixture(scope="package")
def three(package_notebook, disturbed):
    disturbed.append(Disturbed(package_notebook(), 3))
    return disturbed[-1]


@pytest.fixture(scope="package")
def four(package_notebook, disturbed):
    disturbed.append(Disturbed(package_notebook(), 4))
    return disturbed[-1]


@pytest.fixture(autouse=True)
def nothing_left_running(disturbed):
    """A test that fails leaves its cell running, which the next one in that notebook would wait for."""
    yield
    for run in disturbed:
        run.notebook.end_running()
