"""Errors as the user meets them in a cell."""

from __future__ import annotations

import pytest
from IPython.core.interactiveshell import InteractiveShell

from jupyter_dtrain import errors
from jupyter_dtrain.errors import CaptureError, CellError, DtrainError, UsageError

LINES = ["Cell 3, line 2 (ranks 0-1)", "    loss = criterion(out)", "ValueError: bad target"]


def test_one_tree():
    own = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert len(own) > 1
    for error in own:
        assert issubclass(error, DtrainError)
        assert f" {error.__name__} " in f" {errors.__doc__} ".replace("\n", " "), "the tree in the module's docstring shows every error"


def test_our_errors_are_shown_without_a_traceback(capsys):
    shell = InteractiveShell.instance()
    shell.user_ns["UsageError"] = UsageError
    shell.run_cell("raise UsageError('--engines 0: a cluster has at least one engine')")
    shown = capsys.readouterr().out.strip()
    assert shown == "UsageError: --engines 0: a cluster has at least one engine"


def test_a_capture_error_knows_the_name():
    error = CaptureError("`sock` holds an open socket, which cannot be sent.", name="sock")
    assert error.name == "sock"
    assert str(error) == "`sock` holds an open socket, which cannot be sent."


def test_a_cell_error_is_named_after_the_original_and_caught_as_it():
    error = CellError.of("ValueError", "bad target", lines=LINES, ranks=[0, 1])
    assert type(error).__name__ == "ValueError"
    assert str(error) == "bad target"
    assert error.ranks == [0, 1]
    with pytest.raises(ValueError, match="bad target"):
        raise error
    with pytest.raises(CellError):
        raise error


def test_a_cell_error_shows_the_lines_of_the_cell(capsys):
    shell = InteractiveShell.instance()
    shell.user_ns["error"] = CellError.of("ValueError", "bad target", lines=LINES, ranks=[0, 1])
    shell.run_cell("raise error")
    assert capsys.readouterr().out.strip().splitlines() == LINES


def test_a_lookup_error_keeps_its_kind():
    error = CellError.of("KeyError", "'x'", lines=[], ranks=[0])
    assert isinstance(error, KeyError)
    assert str(error) == str(KeyError("x"))


@pytest.mark.parametrize(
    "name",
    [
        "UnicodeDecodeError",  # a builtin whose constructor wants five arguments
        "MyError",  # a class of the user's own, which does not exist here
        "print",  # a builtin that is no exception
        "KeyboardInterrupt",  # one that `except Exception` must go on catching as ours
    ],
)
def test_a_name_that_cannot_be_a_base_is_still_the_name(name):
    error = CellError.of(name, "what it said", lines=LINES, ranks=[3])
    assert type(error).__name__ == name
    assert isinstance(error, CellError)
    assert error.args == ("what it said",)
    assert (error.lines, error.ranks) == (LINES, [3])
