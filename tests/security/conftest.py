from __future__ import annotations

import pytest

from tests.notebook.conftest import module_notebook, new_notebook, nothing_left_running
from tests.security.folders import Victim

__all__ = ["module_notebook", "new_notebook", "nothing_left_running", "victim"]


@pytest.fixture
def victim(tmp_path):
    return Victim(tmp_path)
