"""Magics within a distributed cell: they find what they need of the notebook's shell, and what they change comes home."""

from __future__ import annotations

import pytest

CELL = "%%distribute --engines 2\n"
OWN = """
from IPython.core.magic import Magics, magics_class, line_magic, register_line_magic, register_cell_magic
rate = [0.1]

@register_line_magic
def halve(line):
    rate[0] /= 2
    return f"{line}: {rate[0]}"

@register_cell_magic
def twice(line, cell):
    for _ in range(2):
        exec(cell, get_ipython().user_ns)

@magics_class
class Counter(Magics):
    def __init__(self, shell):
        super().__init__(shell)
        self.number = 0

    @line_magic
    def count(self, line):
        self.number += 1
        print(self.number)

counter = Counter(get_ipython())
get_ipython().register_magics(counter)
del halve, twice  # as IPython's documentation says
"""


@pytest.fixture
def back(notebook):
    """Return to the notebook's folder after the test."""
    notebook.run("import os\nos.makedirs('sub/deep', exist_ok=True)")
    yield
    notebook.run(f"os.chdir({str(notebook.folder)!r})\n_dh[:] = [os.getcwd()]\nget_ipython().dir_stack.clear()")


@pytest.mark.usefixtures("back")
def test_the_folder_and_its_history_come_home(notebook):
    notebook.run("del _dh[:-1]")
    assert notebook.run(f"{CELL}%cd sub\n%cd -q deep\nhere = os.getcwd()").stdout == f"{notebook.folder}/sub\n"
    deep = str(notebook.folder / "sub" / "deep")
    assert notebook.value("(here, os.getcwd(), [str(folder) for folder in _dh])") == (
        deep,
        deep,
        [str(notebook.folder), str(notebook.folder / "sub"), deep],
    )
    assert notebook.run(f"{CELL}%cd -").stdout == f"{notebook.folder}/sub\n"
    assert notebook.value("os.path.basename(os.getcwd())") == "sub"
    notebook.run(f"{CELL}%pushd deep")
    assert notebook.value("os.path.basename(os.getcwd())") == "deep"
    notebook.run("%popd")
    assert notebook.value("(os.path.basename(os.getcwd()), len(_dh))") == ("sub", 6)


@pytest.mark.usefixtures("back")
def test_a_cell_reads_the_history_by_its_name_too(notebook):
    notebook.run("del _dh[:-1]")
    assert notebook.run(f"{CELL}%cd -q sub\nlen(_dh)").result == "2"
    assert notebook.value("len(_dh)") == 2
    assert notebook.run(f"{CELL}%cd -q nowhere").stdout == "[Errno 2] No such file or directory: 'nowhere'\n"


def test_the_notebooks_own_magics_are_found(notebook):
    notebook.run(OWN)
    assert notebook.run("%count").stdout == "1\n"
    cell = notebook.run(f"{CELL}%count\nsaid = %halve rate\nfor _ in range(2):\n    %halve again")
    assert cell.stdout == "2\n"
    assert notebook.value("(said, rate, counter.number)") == ("rate: 0.05", [0.0125], 2)
    assert notebook.run("%count").stdout == "3\n"
    notebook.run(f"{CELL}%%twice\nrate.append(1)")
    assert notebook.value("rate") == [0.0125, 1, 1]
    notebook.run("%alias said echo\n%alias_magic thrice twice --cell")
    assert notebook.run(f"{CELL}%said hello").stdout.strip() == "hello"
    notebook.run(f"{CELL}%%thrice\nrate.pop()")
    assert notebook.value("rate") == [0.0125]


def test_names_are_listed_as_the_notebook_would(notebook):
    notebook.run("first, second = 1, 'two'")
    plain = notebook.run("%who int str").stdout.split()
    assert {"first", "second"} <= {*plain}
    assert notebook.run(f"{CELL}%who int str").stdout.split() == plain
    assert notebook.run(f"{CELL}third = 3\n'third' in get_ipython().run_line_magic('who_ls', 'int')").result == "True"
