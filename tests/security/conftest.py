from __future__ import annotations

import pytest

from tests.notebook.conftest import module_notebook, new_notebook
from tests.security.folders import Victim

__all__ = ["module_notebook", "new_notebook", "victim"]


@pytest.fixture
def victim(tmp_path):
    return Victim(tmp_path)
