"""``--strategy tensor``: each engine has columns of layers, of their gradients and of moments, and none of it is lost with one."""

from __future__ import annotations

import pytest

from tests.faults.disturbed import ROUNDED, Disturbed, Killed
from tests.notebook.kernel import difference


@pytest.fixture(scope="module")
def divided(two):
    """A notebook whose cell comes to the same bits each time under this strategy: layers are added up in its own order."""
    with two.another(options="--strategy tensor") as run:
        yield run


def test_the_cell_comes_to_what_it_comes_to_with_all_of_it_on_each_engine(divided, two):
    divided.go()
    found = divided.notebook.value(ROUNDED)
    two.go()
    assert difference(found, two.notebook.value(ROUNDED)) is None


@pytest.fixture(scope="module")
def killed(module_notebook, divided: Disturbed) -> Killed:
    return Killed.behind_a_checkpoint(module_notebook(), divided, "tensor")


@pytest.mark.long
@pytest.mark.parametrize("engines", [1, 2, 3])
def test_resumed_in_a_new_kernel_on_any_number_of_engines(new_notebook, killed, tmp_path, engines):
    killed.check_resumed(new_notebook, tmp_path, engines)
