"""Every Python snippet of README.md, CONTRIBUTING.md and docs/ runs, in order, in a kernel of its own for each page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SNIPPET = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def snippets(page: Path) -> list[str]:
    return SNIPPET.findall(page.read_text(encoding="utf-8"))


PAGES = [page for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))) if snippets(page)]


# Of features whose own tests run each time: `pytest -m long` runs these.
LONG = {"strategies.md", "data.md", "trials.md", "memory.md", "faults.md", "runs.md", "exact.md", "own-loops.md"}


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name, marks=pytest.mark.long if page.name in LONG else ()) for page in PAGES])
def test_every_snippet_runs(page, new_notebook):
    notebook = new_notebook()
    for snippet in snippets(page):
        notebook.run(snippet)


def test_the_readme_has_a_first_cell():
    first = snippets(ROOT / "README.md")
    assert first[0].startswith("%load_ext jupyter_dtrain\n")
    assert first[1].startswith("%%distribute")


def test_a_page_links_to_files_that_exist():
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}, which is not there"


def test_a_page_names_files_of_the_package_that_exist():
    package = ROOT / "jupyter_dtrain"
    names = {path.relative_to(package).as_posix() for path in package.rglob("*.py")}
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for name in re.findall(r"`(?!RUN/)([\w/]+\.py)", page.read_text(encoding="utf-8")):  # those of a run are the user's
            there = any(known == name or known.endswith(f"/{name}") for known in names) or (ROOT / name).exists()
            assert there, f"{page.relative_to(ROOT)} names {name}, which is not there"
