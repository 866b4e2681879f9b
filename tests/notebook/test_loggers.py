"""What a distributed cell sets of loggers holds in the notebook and in later cells, as after a plain one."""

from __future__ import annotations

import pytest

SETUP = """
import logging, threading
log = logging.getLogger("told by " + NAME)
log.setLevel(logging.INFO)
log.propagate = False

class Kept(logging.Handler):
    def __init__(self):
        super().__init__()
        self.said = []
    def emit(self, record):
        self.said.append((record.levelname, record.getMessage(), getattr(record, "epoch", None)))

first = Kept()
log.addHandler(first)
new = logging.getLogger(NAME)
quiet = logging.getLogger(NAME + ".quiet")
def numbered(record):
    record.epoch = 3
    return "skip" not in record.getMessage()
def state():
    return [(one.level, one.propagate, one.disabled, len(one.handlers), len(one.filters)) for one in (log, new, quiet)], first.said
"""
CELLS = {
    "levels": "log.setLevel(logging.DEBUG); log.debug('a'); new.setLevel(10); quiet.disabled = True; quiet.propagate = False",
    "a filter of the notebook": "log.info('a'); log.info('skip b')",
    "a new handler": "second = Kept(); log.addHandler(second); log.info('a')",
    "a new filter": "log.addFilter(lambda record: 'b' not in record.getMessage()); log.info('a'); log.info('b')",
    "other handlers": "log.handlers.clear(); log.addHandler(logging.NullHandler()); log.info('a')",
    "a file": "to_file = logging.FileHandler(NAME + '.log'); log.addHandler(to_file); log.info('a')",
}


@pytest.mark.parametrize("cell", CELLS)
def test_loggers_are_as_after_a_plain_cell(notebook, cell):
    found = {}
    for number, first in enumerate(("", "%%distribute --engines 2\n")):
        notebook.run(f"NAME = 'logs{number}{list(CELLS).index(cell)}'" + SETUP)
        if cell == "a filter of the notebook":
            notebook.run("log.addFilter(numbered)")
        notebook.run(first + CELLS[cell])
        said = [notebook.value("state()")]
        notebook.run("log.info('c'); log.info('b')")
        notebook.run(first + "log.info('d'); log.info('b')")
        found[first] = [*said, notebook.value("state()")]
    assert found[""] == found["%%distribute --engines 2\n"]
    if cell == "a file":
        logs = [(notebook.folder / f"logs{number}{list(CELLS).index(cell)}.log").read_text() for number in range(2)]
        assert logs[0] == logs[1] == "a\nc\nb\nd\nb\n"


def test_a_configuration_in_a_cell_is_the_notebooks(notebook):
    notebook.run("import logging\nlogging.root.handlers.clear()")
    configure = "logging.basicConfig(level=logging.INFO, format='%(levelname)s:%(message)s', force=True)"
    assert notebook.run(f"%%distribute --engines 2\n{configure}\nlogging.info('hi')").stderr == "INFO:hi\n"
    assert notebook.run("logging.info('home')").stderr == "INFO:home\n"
    assert notebook.run("%%distribute --engines 2\nlogging.info('again')").stderr == "INFO:again\n"
    notebook.run("logging.root.handlers.clear(); logging.root.setLevel(logging.WARNING)")
