from __future__ import annotations

import pytest

from tests.security.folders import Victim


@pytest.fixture
def victim(tmp_path):
    return Victim(tmp_path)
