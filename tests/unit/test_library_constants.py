"""What a library has one of is that one on an engine, and at home again: sentinels that its code compares with ``is``."""

# ruff: noqa: E501, ISC004  # a table

from __future__ import annotations

import calendar
import dataclasses
import functools
import sys
from types import ModuleType
from typing import Any

import pytest
from torch.distributions import constraints

from tests.unit.test_pickling import sent

# A notebook, a cell, and what both have the same of afterwards, wherever the cell ran.
CONSTANTS = {
    "a data class of a cell, of one of the notebook": (
        "from dataclasses import dataclass, field\n@dataclass\nclass Base:\n    a: int\n    b: list = field(default_factory=list)\n    c: int = 3",
        "@dataclass\nclass Sub(Base):\n    z: float = 0.0\nrepr(Sub(1))",
        "repr(Sub(1)), repr(Base(2))",
    ),
    "keyword-only fields, and slots": (
        "from dataclasses import *\n@dataclass\nclass Base:\n    x: int\n    _: KW_ONLY\n    y: list = field(default_factory=list)\n    z: InitVar[int] = 3",
        "@dataclass(slots=True)\nclass Sub(Base):\n    w: dict = field(default_factory=dict)\nrepr(Sub(1, y=[2])), [(f.name, f.kw_only, f.default is MISSING) for f in fields(Sub)]",
        "repr(Sub(1)), fields(Sub)[0].default is MISSING, fields(Base)[1].default is MISSING",
    ),
    "a data class that the cell makes": (
        "import dataclasses",
        "from dataclasses import dataclass, field, MISSING\n@dataclass\nclass Conf:\n    a: int = 1\n    b: list = field(default_factory=list)\nconf = Conf()",
        "MISSING is dataclasses.MISSING, dataclasses.replace(conf, a=5).b, dataclasses.fields(Conf)[1].default is MISSING",
    ),
    "by names": (
        "import calendar, unittest.mock as mock\nfrom dataclasses import MISSING\nx, any_, default, names = MISSING, mock.ANY, mock.DEFAULT, calendar.month_name",
        "import dataclasses\ny = x\nx is MISSING is dataclasses.MISSING, any_ is mock.ANY, default is mock.DEFAULT, names is calendar.month_name",
        "y is MISSING, y is x",
    ),
    "constraints": (
        "import torch\nfrom torch.distributions import Distribution, biject_to, constraints\nheld = {'loc': constraints.real, 'scale': constraints.positive}\n"
        "class Own(Distribution):\n    arg_constraints, support = held, constraints.real_vector",
        "positive = held['scale']\nheld['loc'] is constraints.real, positive is constraints.positive, Own.support is constraints.real_vector, type(biject_to(positive)).__name__",
        "positive is constraints.positive, Own.support is constraints.real_vector, Own.arg_constraints is held",
    ),
    "an object without a class of its own": (
        "import functools\nm, mine = functools._initial_missing, object()\nget = functools.partial({}.get, 'k', m)",
        "o = m\nm is functools._initial_missing, get() is m, mine is m",
        "o is m",
    ),
    "what describes the process": (
        "import sys\nflags, version = sys.flags, [sys.version_info, sys.float_info, sys.int_info]",
        "v = version[0]\nflags is sys.flags, v >= (3, 8), v is sys.version_info, version[1] is sys.float_info",
        "v is sys.version_info",
    ),
    "one with a setting": (
        "import calendar\ncalendar.setfirstweekday(6)\nc = calendar.c",
        "first = c.firstweekday, calendar.c.firstweekday, calendar.weekheader(2)\nc.setfirstweekday(2)\nfirst, calendar.weekheader(2)",
        "first, c.firstweekday, c is calendar.c, calendar.weekheader(2), calendar.setfirstweekday(0)",
    ),
    "argparse's text": (
        "import argparse\nparser = argparse.ArgumentParser(); parser.add_argument('--lr', type=float, default=0.1); parser.add_argument('--x', default=argparse.SUPPRESS)\n"
        "parser.add_argument('--y', help=argparse.SUPPRESS); sub = parser.add_subparsers().add_parser('t'); sub.add_argument('--k', type=int, default=1)",
        "s = argparse.SUPPRESS; marks = {s: [s]}; other = argparse.ArgumentParser(argument_default=s); other.add_argument('--z')\n"
        "parser.parse_args([]), parser.parse_args(['t', '--k', '3']), parser.format_help().partition('options')[2], other.parse_args([])",
        "parser.parse_args([]), other.parse_args([]), s is argparse.SUPPRESS, list(marks)[0] is s, marks[s][0] is s, parser.format_help()",
    ),
    "optparse's texts": (
        "import optparse\nparser = optparse.OptionParser(usage=optparse.SUPPRESS_USAGE); parser.add_option('--lr', type='float'); parser.add_option('--a', help=optparse.SUPPRESS_HELP)\nno = optparse.NO_DEFAULT",
        "n = no\nvars(parser.parse_args([])[0]), parser.format_help(), no is optparse.NO_DEFAULT",
        "vars(parser.parse_args([])[0]), parser.format_help(), n is optparse.NO_DEFAULT",
    ),
    "of a module of the notebook's folder": (
        "open('own_one.py', 'w').write('class M: pass\\nMISSING = M()\\nO = object()\\ndef f(x=MISSING, y=O): return x is MISSING, y is O\\n')\nimport sys; sys.path.insert(0, '')\ntry: import own_one\nfinally: del sys.path[0]\nx, o = own_one.MISSING, own_one.O",
        "y = x\nx is own_one.MISSING, o is own_one.O, own_one.f(x, o), own_one.f()",
        "y is own_one.MISSING, own_one.f(y)",
    ),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_librarys_constant_is_the_same_object_everywhere(name, notebook, other_notebook):
    setup, cell, compared = CONSTANTS[name]
    other_notebook.plain(setup)
    expected = repr(other_notebook.plain(cell)), repr(other_notebook.plain(compared))
    notebook.plain(setup)
    assert (repr(notebook.distribute(cell)), repr(notebook.plain(compared))) == expected
    sys.modules.pop("own_one", None)


def test_an_engines_own_object_has_its_own_setting_again(notebook):
    notebook.plain("import calendar\nc = calendar.TextCalendar(); calendar.setfirstweekday(6); c = calendar.c")
    assert notebook.distribute("c.firstweekday, calendar.c.firstweekday") == (6, 6)
    calendar.setfirstweekday(0)
    assert notebook.distribute("import calendar as k\nk.c.firstweekday") == 0


@pytest.mark.parametrize(
    "constant", [dataclasses.MISSING, constraints.positive, constraints.real_vector, vars(functools)["_initial_missing"], sys.flags]
)
def test_a_constant_is_written_by_its_name(constant):
    assert sent([constant, {"again": constant}]) == [constant, {"again": constant}]
    assert sent(constant) is constant


class Marker:
    """A class with instances among the globals of its module."""

    def __init__(self, value: Any = None) -> None:
        self.value = value


ONE, LISTS = Marker(1), Marker([])


def test_an_object_with_contents_that_may_change_is_copied():
    assert sent(ONE) is ONE
    assert sent(LISTS) is not LISTS
    assert sent(Marker(1)) is not ONE
    ONE.value = [1]
    try:
        assert sent(ONE).value == [1] and sent(ONE) is not ONE
    finally:
        ONE.value = 1


def test_outside_of_a_cell_an_object_that_differs_is_copied(monkeypatch):
    module = ModuleType("a_library")
    kind = type("Kind", (), {"__module__": module.__name__})
    vars(module).update(Kind=kind, ONE=kind())
    monkeypatch.setitem(sys.modules, module.__name__, module)
    kept: Any = vars(module)["ONE"]
    kept.rate, kept._started = 1, False
    assert sent(kept) is kept
    other = kind()
    other.rate, other._started = 2, True

    class Replacing:
        def __reduce__(self):
            return setattr, (module, "ONE", other)

    copy = sent([Replacing(), kept])[1]
    assert (copy.rate, copy._started) == (1, False)
    assert copy is not other and other.rate == 2
