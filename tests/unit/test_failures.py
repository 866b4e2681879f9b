"""An error of one rank is raised on the others: the same type, text and causes, or as much of them as can be sent."""

from __future__ import annotations

import pickle
import threading

import pytest

from jupyter_dtrain.engine.comm.failures import LONGEST, RAISED_ON, error_of, text_of, to_bytes


class Sampled(ValueError):
    def __init__(self, text, index):
        super().__init__(text, index)
        self.index, self.lock = index, threading.Lock()


class Silent(ValueError):
    def __str__(self):
        raise RuntimeError("it does not say")


def sent(error: BaseException) -> BaseException:
    return error_of(to_bytes(error), 3)


def test_an_error_keeps_what_can_be_sent():
    error = sent(Sampled("a sample", 7))
    assert type(error) is Sampled
    assert error.args == ("a sample", 7)
    assert error.index == 7
    assert getattr(error, RAISED_ON) == 3


def test_an_argument_that_cannot_be_sent_is_told_by_the_text():
    lock = threading.Lock()
    assert sent(ValueError(lock)).args == (str(lock),)


def causes() -> None:
    try:
        raise KeyError("inner") from OSError(2, "innermost")
    except KeyError as inner:
        raise ValueError("outer") from inner


def test_causes_and_what_hides_the_context_are_kept():
    with pytest.raises(ValueError, match="outer") as caught:
        causes()
    error = sent(caught.value)
    assert repr(error.__cause__) == "KeyError('inner')"
    assert error.__cause__ is not None
    assert repr(error.__cause__.__cause__) == repr(OSError(2, "innermost"))
    assert error.__suppress_context__
    assert not sent(ValueError("alone")).__suppress_context__


def test_an_error_whose_class_is_not_here_names_it():
    kind = type("Local", (ValueError,), {})
    failure = to_bytes(kind("a sample"))
    del kind
    content, place = pickle.loads(failure)
    error = error_of(pickle.dumps((content | {"name": "Gone"}, place)), 1)
    assert repr(error) == "RuntimeError('Gone: a sample')"


def test_an_error_that_cannot_say_what_it_is_has_its_type():
    assert type(sent(Silent("a"))) is Silent
    assert text_of(to_bytes(Silent("a"))) == "Silent (without a message)"


def test_a_long_error_is_cut():
    failure = to_bytes(ValueError("long " * LONGEST, b"bytes" * LONGEST))
    assert len(failure) <= LONGEST
    assert str(error_of(failure, 1)).startswith("('long long ")


def test_what_is_no_error_any_more_is_called_one():
    assert text_of(to_bytes(ValueError("a"))[:20]) == "an error"
