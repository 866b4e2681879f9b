"""Notebooks for tests that disturb them: the same as for tests that do not."""

from collections.abc import Callable, Iterator

import pytest

from tests.faults.control_groups import ControlGroups, why_none
from tests.faults.disturbed import Disturbed
from tests.notebook.conftest import module_notebook, new_notebook, nothing_left_running, package_notebook
from tests.notebook.test_corpus import DRAW_WHEN_IMPORTED

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


@pytest.fixture(scope="module")
def corpus_notebook(two):
    """One that runs cells as tests/notebook/test_corpus.py does, on two engines: of what the others have made it forgets all."""
    with two.lent() as notebook:
        notebook.run(f"{DRAW_WHEN_IMPORTED}%distribute start -n 2 --device cpu\n_names = {{*get_ipython().user_ns_hidden, 'sklearn'}}")
        yield notebook


@pytest.fixture
def control_groups() -> Iterator[Callable[[int], ControlGroups]]:
    """Return what limits the memory of processes to a number of bytes each; skips where that takes rights that there are not."""
    reason = why_none()
    if reason is not None:
        pytest.skip(reason)
    made: list[ControlGroups] = []

    def limited(num_bytes: int) -> ControlGroups:
        made.append(ControlGroups(num_bytes))
        return made[-1]

    yield limited
    for groups in made:
        groups.remove()
