"""The version has one home, ``jupyter_dtrain/__init__.py``; what must repeat it repeats it right."""

import json
from pathlib import Path

import jupyter_dtrain

ROOT = Path(__file__).resolve().parents[2]


def test_package_json_has_the_version_of_the_package() -> None:
    package = json.loads((ROOT / "package.json").read_text(encoding="utf-8"))
    assert package["version"] == jupyter_dtrain.__version__
