"""docs/reference is what the code says: every option, public function, setting and variable."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generator():
    spec = spec_from_file_location("generate_reference", ROOT / "docs" / "generate_reference.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["api.md", "options.md", "settings.md", "patches.md"])
def test_a_reference_page_is_up_to_date(generator, page):
    there = (ROOT / "docs" / "reference" / page).read_text(encoding="utf-8")
    assert there == generator.pages()[page], "run `python docs/generate_reference.py`"


def test_variables_that_a_user_may_set_have_the_defaults_of_the_code(generator):
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "jupyter_dtrain").rglob("*.py"))
    read = dict(re.findall(r'os\.environ\.get\("(JUPYTER_DTRAIN_\w+)", "(.*?)"\)', sources))
    assert read == {name: default for name, (default, _) in generator.VARIABLES.items()}
