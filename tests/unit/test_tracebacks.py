"""An error of the cell as the notebook shows it: once, with the cell's own lines, and whose it is."""

from __future__ import annotations

import gc
import linecache
import re
import weakref

import numpy
import pytest
import torch

from jupyter_dtrain.elastic.worker_group import WorkerResult
from jupyter_dtrain.engine.cell import Failure, Frame, describe, forget_frames, run_cell
from jupyter_dtrain.engine.comm.failures import error_of, to_bytes
from jupyter_dtrain.engine.task import Outcome
from jupyter_dtrain.errors import CellError
from jupyter_dtrain.notebook.tracebacks import cell_error

CELL = "/tmp/ipykernel_1/5.py"
SOURCE = "\nfor x in loader:\n    loss = f(x)\n    loss.backward()\n\nprint(loss)\n"  # the first line is the magic's


@pytest.fixture(autouse=True)
def cells():
    linecache.cache[CELL] = (len(SOURCE), None, SOURCE.splitlines(keepends=True), CELL)
    yield {CELL: "Cell In[3]"}
    del linecache.cache[CELL]


def failure(
    line: int, name: str = "ValueError", message: str = "bad", *, secondary: bool = False, below: tuple[Frame, ...] = ()
) -> Failure:
    return Failure(name, message, [Frame(CELL, line, "<module>", None), *below], secondary)


def end(rank: int, failure: Failure | None) -> WorkerResult:
    return WorkerResult(rank, Outcome(rank=rank, failure=failure, stopped=False, steps=0))


def lines_of(ends: list[WorkerResult], cells: dict[str, str], **left_out: str) -> list[str]:
    error = cell_error(ends, cells=cells, left_out=left_out)
    assert error is not None
    assert error._render_traceback_() == error.lines
    return error.lines


def test_no_error():
    assert cell_error([end(0, None), end(1, None), WorkerResult(2, None, "gone")], cells={}, left_out={}) is None


def test_the_cells_lines_around_the_one_at_fault(cells):
    assert lines_of([end(0, failure(4))], cells) == [
        "-" * 75,
        "ValueError",
        "Cell In[3], line 4",
        "        2 for x in loader:",
        "        3     loss = f(x)",
        "---->   4     loss.backward()",
        "        5",
        "        6 print(loss)",
        "ValueError: bad",
    ]


def test_the_magics_own_line_is_not_shown(cells):
    assert lines_of([end(0, failure(2))], cells)[2:6] == [
        "Cell In[3], line 2",
        "---->   2 for x in loader:",
        "        3     loss = f(x)",
        "        4     loss.backward()",
    ]


@pytest.mark.parametrize(
    ("failing", "world_size", "where"),
    [
        ([0], 1, ""),
        ([0, 1], 2, "on all 2 ranks"),
        ([0, 1, 2], 4, "on ranks 0–2"),
        ([1, 3], 4, "on ranks 1, 3"),
        ([2], 4, "on rank 2"),
    ],
)
def test_equal_errors_are_shown_once_with_their_ranks(cells, failing, world_size, where):
    ends = [end(rank, failure(3) if rank in failing else None) for rank in range(world_size)]
    lines = lines_of(ends, cells)
    assert lines[1].split(maxsplit=1) == (["ValueError", where] if where else ["ValueError"])
    assert len(lines) == 8
    assert sum("ValueError: bad" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("message", "other"), [("size 16 of 0.5", "size 15 of 0.25"), ("<function f at 0x7f76092cbc10>", "<function f at 0xab92c3ab0>")]
)
def test_numbers_in_a_message_do_not_tell_errors_apart(cells, message, other):
    lines = lines_of([end(0, failure(3, message=message)), end(1, failure(3, message=other))], cells)
    assert lines[-1] == f"ValueError: {message}"
    assert lines[1].endswith("on all 2 ranks")


@pytest.mark.parametrize("other", [failure(4), failure(3, name="KeyError"), failure(3, message="worse")])
def test_other_errors_are_told_in_a_line(cells, other):
    lines = lines_of([end(0, failure(3)), end(1, other), end(2, failure(3))], cells)
    assert lines[1].endswith("on ranks 0, 2")
    assert lines[-2:] == ["ValueError: bad", f"rank 1 raised {other.name}: {other.message}"]


def test_who_only_lost_the_others_is_not_mentioned(cells):
    broken = failure(4, name="RuntimeError", message="Connection closed by peer", secondary=True)
    error = cell_error([end(0, broken), end(1, failure(3)), end(2, broken)], cells=cells, left_out={})
    assert error is not None
    assert (type(error).__name__, str(error), error.ranks) == ("ValueError", "bad", [1])
    assert "peer" not in "\n".join(error.lines)
    assert isinstance(error, ValueError)
    assert isinstance(error, CellError)


def test_where_all_lost_the_others_one_of_them_is_shown(cells):
    broken = failure(4, name="RuntimeError", message="Connection closed by peer", secondary=True)
    assert lines_of([end(0, broken), WorkerResult(1, None, "gone")], cells)[-1] == "RuntimeError: Connection closed by peer"


def test_library_code_is_one_line(cells):
    below = (Frame("/lib/a.py", 10, "outer", "inner()"), Frame("/lib/b.py", 20, "inner", "raise ValueError"))
    lines = lines_of([end(0, failure(4, below=below))], cells)
    assert lines[8:] == ["/lib/b.py, line 20, in inner", "      raise ValueError", "ValueError: bad"]


def test_functions_of_other_cells_are_shown(cells):
    other = "/tmp/ipykernel_1/2.py"
    cells = {**cells, other: "Cell In[1]"}
    linecache.cache[other] = (10, None, ["def f(x):\n", "    return g(x)\n"], other)
    below = (Frame("/lib/a.py", 10, "call", "f()"), Frame(other, 2, "f", None))
    lines = lines_of([end(0, failure(3, below=below))], cells)
    assert lines[7:] == ["Cell In[1], line 2, in f", "        1 def f(x):", "---->   2     return g(x)", "ValueError: bad"]


def test_a_name_that_could_not_be_sent_is_explained(cells):
    missing = failure(3, name="NameError", message="name 'gate' is not defined")
    lines = lines_of([end(0, missing), end(1, missing)], cells, gate="TypeError: cannot pickle '_thread.lock' object")
    assert lines[-1] == "('gate' exists in the notebook but could not be sent: TypeError: cannot pickle '_thread.lock' object)"
    assert "could not be sent" not in "\n".join(lines_of([end(0, missing)], cells, other="x"))


def test_an_error_without_a_message(cells):
    assert lines_of([end(0, failure(3, name="KeyboardInterrupt", message=""))], cells)[-1] == "KeyboardInterrupt"


# -- on the engine ---------------------------------------------------------------------------------------------------


def raised(source: str) -> BaseException:
    try:
        run_cell(source, CELL, {"__name__": "__main__"})
    except BaseException as error:
        return error
    raise AssertionError("it did not raise")


def test_a_failure_has_the_cells_frames_and_none_of_ours():
    failure = describe(raised("\ndef f(x):\n    return 1 / x\n\n[f(v) for v in (1, 0)]\n"))
    assert (failure.name, failure.message, failure.secondary) == ("ZeroDivisionError", "division by zero", False)
    frames = [(frame.filename, frame.line) for frame in failure.frames if frame.function != "<listcomp>"]
    assert frames == [(__file__, frames[0][1]), (CELL, 5), (CELL, 3)], "this file stands for the caller"
    assert failure.frames[-1].function == "f"


def test_a_failure_in_a_library_keeps_its_frames():
    failure = describe(raised("import json\njson.loads('{')"))
    assert failure.name == "JSONDecodeError"
    assert failure.frames[1] == Frame(CELL, 2, "<module>", "json.loads('{')")
    assert failure.frames[-1].filename.endswith("decoder.py")


@pytest.mark.parametrize(
    ("error", "secondary"),
    [
        (RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1"), True),
        (RuntimeError("shapes 2 and 3 do not match"), False),
        (ValueError("gloo"), False),
        (KeyboardInterrupt(), True),
    ],
)
def test_who_is_the_cause(error, secondary):
    assert describe(error).secondary is secondary


def test_what_an_error_holds_is_let_go():
    class Held:
        pass

    seen: list[weakref.ref[Held]] = []

    def inner() -> None:
        held = Held()
        seen.append(weakref.ref(held))
        raise KeyError(1)

    try:
        try:
            inner()
        except KeyError as error:
            raise ValueError from error
    except ValueError as error:
        kept = error
    gc.collect()
    assert seen[0]() is not None
    forget_frames(kept)
    assert seen[0]() is None
    assert isinstance(kept.__cause__, KeyError)


def test_no_room_on_a_device_says_what_can_be_done(cells):
    message = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.20 GiB is free."
    lines = lines_of([end(0, None), end(1, failure(3, name="OutOfMemoryError", message=message))], cells)
    assert lines[1].endswith("on rank 1")
    assert lines[-2] == f"OutOfMemoryError: {message}"
    assert all(thing in lines[-1] for thing in ("batch_size", "more engines", "bfloat16"))


@pytest.mark.parametrize(
    ("code", "asked"),
    [("torch.empty(10**15)", "GiB were asked for at once. "), ("bytearray(10**18)", ""), ("numpy.empty(10**15)", "7.11 PiB")],
)
def test_no_room_on_the_host_says_how_much_there_was(cells, code, asked):
    with pytest.raises((RuntimeError, MemoryError)) as caught:
        eval(code, {"torch": torch, "numpy": numpy})
    lines = lines_of([end(0, describe(caught.value)), end(1, None)], cells)
    assert lines[1].endswith("on rank 0")
    assert asked in "\n".join(lines)
    assert re.match(r"\(The rank's process held \S+ [GM]iB; of the \S+ GiB that it may have, \S+ GiB were free\. ", lines[-1])
    assert all(thing in lines[-1] for thing in ("batch_size", "fewer engines", "mmap_mode"))


def test_how_much_was_asked_for_is_told_as_people_read_it(cells):
    message = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8589934592 bytes. Error code 12 (Cannot allocate memory)"
    assert lines_of([end(0, failure(3, name="RuntimeError", message=message))], cells)[-1].startswith("(8.0 GiB were asked for at once. ")


CAUSED = "The above exception was the direct cause of the following exception:"
HANDLED = "During handling of the above exception, another exception occurred:"


def shown(source: str, cells: dict[str, str]) -> list[str]:
    linecache.cache[CELL] = (len(source), None, ("\n" + source).splitlines(keepends=True), CELL)
    return lines_of([end(rank, describe(raised("\n" + source))) for rank in (0, 1)], cells)


@pytest.mark.parametrize(
    ("source", "last"),
    [
        ("raise KeyError('k') from None", ["KeyError: 'k'"]),
        (
            "e = ValueError('bad')\ne.add_note('look here')\ne.add_note('and\\nthere')\nraise e",
            ["ValueError: bad", "look here", "and", "there"],
        ),
        ("raise OSError('outer') from ValueError('inner')", ["OSError: outer"]),
    ],
)
def test_what_was_added_to_an_error_is_below_it(cells, source, last):
    assert shown(source, cells)[-len(last) :] == last


@pytest.mark.parametrize(
    ("clause", "between"), [(" from error", CAUSED), ("", HANDLED), (" from None", None)], ids=["cause", "handled", "neither"]
)
def test_what_came_before_an_error_is_shown_before_it(cells, clause, between):
    source = f"try:\n    int('x')\nexcept ValueError as error:\n    raise RuntimeError('outer'){clause}\n"
    lines = shown(source, cells)
    first = "ValueError: invalid literal for int() with base 10: 'x'"
    assert lines[-1] == "RuntimeError: outer"
    assert "---->   5     raise RuntimeError('outer')" + clause in lines
    assert (first in lines) == (between is not None)
    if between is not None:
        assert lines[lines.index(first) + 1 :][:3] == ["", between, ""]
        assert lines.index("---->   3     int('x')") < lines.index(first)


def test_the_errors_of_a_group_are_shown_with_it(cells):
    source = (
        "bad = ValueError('bad')\nbad.add_note('look here')\nraise ExceptionGroup('many', [bad, ExceptionGroup('few', [KeyError('k')])])"
    )
    assert shown(source, cells)[-10:] == [
        "ExceptionGroup: many (2 sub-exceptions)",
        "  +-+---------------- 1 ----------------",
        "    | ValueError: bad",
        "    | look here",
        "    +---------------- 2 ----------------",
        "    | ExceptionGroup: few (1 sub-exception)",
        "    |   +-+---------------- 1 ----------------",
        "    |     | KeyError: 'k'",
        "    |     +------------------------------------",
        "    +------------------------------------",
    ]


def test_errors_that_are_their_own_causes_end(cells):
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert lines_of([end(0, describe(first))], cells)[2:] == ["ValueError: second", "", CAUSED, "", "ValueError: first"]


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("raise EOFError", "(Engines have no keyboard: ask with input() or getpass() in another cell"),
        ("raise ValueError('trying to initialize the default process group twice!')", "runs with `%%distribute --strategy none`"),
        ("import sqlite3\nraise sqlite3.OperationalError('disk I/O error')", "behind `if is_main():`"),
    ],
)
def test_what_to_do_is_said(cells, source, hint):
    assert hint in shown(source, cells)[-1]


def test_an_error_that_another_rank_has_raised_is_told_as_its_own(cells):
    own = raised("\nraise ValueError('sample 9')")
    copy = error_of(to_bytes(own), rank=1)
    assert (type(copy), copy.args) == (ValueError, ("sample 9",))
    lines = lines_of([end(0, describe(copy)), end(1, describe(own))], cells)
    assert lines[1] == "ValueError" + "on rank 1".rjust(65)
