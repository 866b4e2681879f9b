"""The pages that say where things are: each path in them is there, and the walks through the files are as short as they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE, FRONT_END = ROOT / "jupyter_dtrain", ROOT / "labextension" / "src"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
PAGES = {name: (ROOT / name).read_text() for name in ("docs/architecture.md", "CONTRIBUTING.md")}


def paths(text: str) -> list[str]:
    """Return what stands between backticks and looks like a file of Python or TypeScript, or like a folder."""
    return re.findall(r"`((?:[\w.]+/)*[\w.]+\.(?:py|ts)|(?:[\w.]+/)+)`", text)


def is_there(path: str) -> bool:
    """Return whether a path is there: from the root, the package or the front end on; a name, or the end of a path, also elsewhere."""
    if any((base / path).exists() for base in (ROOT, PACKAGE, FRONT_END)):
        return True
    return any(True for base in (PACKAGE, FRONT_END) for _ in base.rglob(path.rstrip("/")))


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_is_there(page):
    found = paths(PAGES[page])
    assert len(found) > 20
    assert not (missing := sorted({path for path in found if not is_there(path)})), missing


def walk(title: str) -> list[str]:
    """Return the files of one of the walks, in order: those of its numbered steps."""
    text = PAGE[PAGE.index(f"**{title}") :]
    steps = re.search(r"(?:^\d\. .*\n(?:   .*\n)*)+", text, re.MULTILINE)
    assert steps is not None
    return [path for path in paths(steps[0]) if not path.endswith("/")]


@pytest.mark.parametrize("title", ["A cell's text", "A loss", "A batch"])
def test_a_walk_enters_as_many_files_as_it_says(title):
    files = walk(title)
    said = re.search(rf"\*\*{title}.*?\*\*, (\d+) files", PAGE)
    assert said is not None
    assert len(files) == len(set(files)) == int(said[1])
