"""What a distributed cell sets of loggers holds in the notebook and in later cells, as after a plain one."""
# ruff: noqa: E501  # a table: one case a line

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


OBJECTS = """
import io, logging
log = logging.getLogger(NAME)
log.setLevel(logging.DEBUG)
log.propagate = False
class Kept(logging.Handler):
    recs = None
    def __init__(self):
        super().__init__()
        self.recs = []
    def emit(self, record):
        self.recs.append(record.getMessage())
class Counts(logging.Filter):
    n = 0
    def filter(self, record):
        self.n += 1
        return "skip" not in record.getMessage()
class Loud(logging.Formatter):
    made = 0
    def format(self, record):
        self.made += 1
        return super().format(record).upper()
class Elsewhere(logging.Handler):
    def emit(self, record): recs.append(record.msg)
buffer, recs = io.StringIO(), []
log.addHandler(Elsewhere())
kept, text, counts, own_counts, loud = Kept(), logging.StreamHandler(buffer), Counts(), Counts(), Loud("%(levelname)s %(message)s")
to_file, shown = logging.FileHandler(NAME + ".txt"), logging.StreamHandler()
text.setFormatter(loud)
for one in (to_file, kept, text, shown): log.addHandler(one)
seen = []
def state():
    handlers = [[kept, text, to_file, shown].index(one) for one in log.handlers if one in (kept, text, to_file, shown)]
    return kept.recs, recs, text.stream.getvalue(), counts.n, own_counts.n, loud.made, seen, handlers, [one.level for one in log.handlers]
"""
REACHED = {
    "the user's own": "log.info('a'); seen.append(len(kept.recs)); log.debug('b'); seen.append(kept.recs[-1])",
    "a text": "log.info('a'); seen.append(text.stream.getvalue())",
    "a level": "shown.setLevel('ERROR'); to_file.setLevel(logging.WARNING); log.info('a'); log.warning('b'); log.error('c')",
    "filters": "log.addFilter(counts); to_file.addFilter(own_counts); log.info('a'); log.info('skip b'); seen.append((counts.n, own_counts.n))",
    "a formatter": "to_file.setFormatter(loud); shown.setFormatter(loud); log.info('a'); seen.append(loud.made)",
    "one removed": "log.removeHandler(kept); log.info('a'); seen.append(len(kept.recs)); log.removeHandler(to_file)",
    "all removed": "for one in (kept, to_file, text, shown): log.removeHandler(one)\nlog.addHandler(kept); log.info('a'); seen.append(kept.recs)",
    "one of the cell": "more = Kept(); log.addHandler(more); log.info('a'); seen.append((more.recs, kept.recs))",
    "what a handler writes into": "log.info('a'); seen.append((buffer.getvalue(), len(recs)))",
    "none": "log.info('a'); log.info('b')",
}


@pytest.mark.parametrize("cell", REACHED)
def test_handlers_that_a_cell_reaches_handle_in_it(notebook, cell):
    found = {}
    for number, first in enumerate(("", "%%distribute --engines 2\n")):
        name = f"objects{number}{list(REACHED).index(cell)}"
        notebook.run(f"NAME = {name!r}" + OBJECTS)
        if cell == "none":
            notebook.run("log.addFilter(counts); to_file.addFilter(own_counts)")
        during = notebook.run(first + REACHED[cell]).stderr
        said = [notebook.value("state()")]
        after = notebook.run("log.warning('later'); to_file.flush()").stderr
        second = notebook.run(first + REACHED[cell]).stderr
        written = (notebook.folder / f"{name}.txt").read_text()
        found[first] = [*said, during, after, second, notebook.value("state()"), written]
        notebook.run("to_file.close()")
    assert found["%%distribute --engines 2\n"] == found[""]


def test_a_handler_that_cannot_be_sent_stays_in_the_notebook(notebook):
    notebook.run("NAME = 'held'" + OBJECTS + "kept.frame = __import__('sys')._getframe(); recs_of_kept = kept.recs")
    cell = notebook.run("%%distribute --engines 2\nlog.info('a'); buffer.getvalue(), len(recs_of_kept)")
    assert cell.result == "('INFO A\\n', 0)"
    assert notebook.value("kept.recs, recs, (to_file.flush(), open('held.txt').read())[1]") == (["a"], ["a"], "a\n")
    # Beside a value that cannot be sent either, which the cell might ask for by its name.
    notebook.run("frame = kept.frame")
    assert notebook.run("%%distribute --engines 2\neval('log').info('b'); buffer.getvalue()").result == "'INFO A\\nINFO B\\n'"
    notebook.run("log.removeHandler(kept); to_file.close(); del frame, kept.frame")
