"""The frames that a failed cell leaves on its engine: what of them is kept, how they are looked at, and that they go."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from jupyter_dtrain.engine import post_mortem
from jupyter_dtrain.engine.cell import forget_frames, run_cell
from jupyter_dtrain.engine.tensor.batch_shard import BatchShard
from jupyter_dtrain.engine.tensor.parted import part_of
from jupyter_dtrain.engine.tensor.placement_types import Partial, Shard, from_local
from jupyter_dtrain.engine.user_frames import OURS
from jupyter_dtrain.strategies import find

CELL = "/tmp/ipykernel_1/7.py"
SOURCE = """def deeper(rows):
    own = rows * 2
    raise ValueError("enough")
numbers = [1, 2]
deeper(numbers)
"""


class Holds:
    """Something large."""


@pytest.fixture(autouse=True)
def _nothing_kept():
    yield
    post_mortem.forget()


def task(world_size: int = 1, strategy: str = "auto") -> Any:
    return SimpleNamespace(run_id="run", rank=1 % world_size, world_size=world_size, strategy=find(strategy))


def fail(source: str, namespace: dict[str, Any], given: Any) -> None:
    """Run a cell that fails as an engine runs it."""
    try:
        run_cell(source, CELL, namespace)
    except BaseException as error:
        forget_frames(error, kept=post_mortem.keep(error, given))


CALLER = """def caller(inner):
    large = Holds()
    seen.append(weakref.ref(large))
    inner()
"""


def do(line: str) -> str:
    text, is_over = post_mortem.command("run", line)
    assert not is_over
    return text


def test_a_debugger_stands_in_the_users_frames():
    fail(SOURCE, {}, task())
    text, is_over = post_mortem.begin("run", "nocolor")
    assert not is_over
    assert f"> {CELL}(3)deeper()" in text
    assert '----> 3     raise ValueError("enough")' in text
    assert do("p own, rows") == "([1, 2, 1, 2], [1, 2])\n"
    assert "cell.py" not in do("where")
    assert f"> {CELL}(5)<module>()" in do("up")
    assert do("numbers + [3]") == "[1, 2, 3]\n"
    assert do("own") == "*** NameError: name 'own' is not defined\n"
    assert f"> {CELL}(3)deeper()" in do("down")
    assert "----> 3" in do("list")
    assert do("!own = 5") == ""
    assert do("print('printed')") == "printed\n"


@pytest.mark.parametrize("line", ["interact", "debug deeper([])", "run", "commands 1"])
def test_what_needs_a_keyboard_is_refused_by_name(line):
    fail(SOURCE, {}, task())
    post_mortem.begin("run", "nocolor")
    assert do(line) == f"*** {line.split()[0]} would read from a keyboard, and engines have none\n"


@pytest.mark.parametrize("line", ["c", "n"])
def test_what_would_go_on_leaves_the_frames(line):
    fail(SOURCE, {}, task())
    post_mortem.begin("run", "nocolor")
    assert post_mortem.command("run", line) == ("", True)
    assert "deeper" in post_mortem.begin("run", "nocolor")[0]


@pytest.mark.parametrize("line", ["q", "quit", "exit", "EOF"])
def test_what_quits_frees_the_frames(line):
    namespace: dict[str, Any] = {"large": Holds()}
    seen = weakref.ref(namespace["large"])
    fail("def f(given):\n    given.missing\nf(large)", namespace, task())
    post_mortem.begin("run", "nocolor")
    assert do("p type(given).__name__") == "'Holds'\n"
    del namespace
    gc.collect()
    assert seen() is not None
    assert post_mortem.command("run", line)[1]
    assert seen() is None
    assert post_mortem.command("run", "p 1") == (post_mortem.GONE, True)
    assert post_mortem.begin("run", "nocolor") == (post_mortem.GONE, True)


def test_the_callers_of_the_cell_keep_nothing():
    names: dict[str, Any] = {"Holds": Holds, "weakref": weakref, "seen": []}
    exec(compile(CALLER, f"{OURS}/calling.py", "exec"), names)
    names["caller"](lambda: fail(SOURCE, {}, task()))
    (seen,) = names["seen"]
    assert seen() is not None
    post_mortem.clear_callers()
    assert seen() is None
    assert "own" in post_mortem.begin("run", "nocolor")[0]


def test_the_frames_of_another_run_are_not_shown():
    fail(SOURCE, {}, task())
    assert post_mortem.begin("another", "nocolor") == (post_mortem.GONE, True)


def test_memory_that_has_run_out_keeps_no_frames():
    large = Holds()
    seen = weakref.ref(large)
    fail("def f(given):\n    raise MemoryError\nf(large)", {"large": large}, task())
    del large
    gc.collect()
    assert seen() is None
    assert post_mortem.begin("run", "nocolor") == (post_mortem.NO_ROOM, True)


def test_programs_of_their_own_keep_none():
    fail(SOURCE, {}, task(strategy="none"))
    assert post_mortem.begin("run", "nocolor") == (post_mortem.GONE, True)


def test_a_breakpoint_is_looked_at_where_it_stands():
    fail("def f(x):\n    import bdb\n    bdb.Bdb().set_trace() if x else 0\n    raise bdb.BdbQuit\nf(0)", {}, task())
    assert f"> {CELL}(4)f()" in post_mortem.begin("run", "nocolor")[0]


def test_a_part_is_never_shown_for_the_whole():
    share = BatchShard(total=10, start=4, stop=7)
    part = torch.arange(6.0).view(3, 2)
    names = {
        "x": from_local(part, Shard(0, share)),
        "loss": from_local(part.mean(), Partial.mean(share)),
        "w": torch.ones(2),
        "torch": torch,
    }
    fail("x, loss, w, len, float, print\n1 / 0", names, task(world_size=3))
    post_mortem.begin("run", "nocolor")
    refused = "it spans the ranks, and the others have left: `local EXPRESSION` shows the part of this rank"
    assert do("p x.shape, len(x), x.dtype") == "(torch.Size([10, 2]), 10, torch.float32)\n"
    words = "tensor(<of all ranks; this one has 4:7 of the 10 along dim 0>, size=(10, 2), dtype=torch.float32)"
    assert do("p x") == f"{words}\n"
    assert do("p [x, 1]") == f"[{words}, 1]\n"
    assert "a mean that counts 0.3 of all" in do("pp locals()")
    for expression in ("loss.item()", "float(loss)", "x.sum().item()", "x[0]", "x.tolist()", "torch.full((2,), loss)"):
        assert refused in do(f"p {expression}"), expression
    assert do("p w") == "tensor([1., 1.])\n"
    assert "4:7 of the 10 along dim 0" in do("local x")
    assert "[4., 5.]" in do("local x")
    assert "(a mean that counts 0.3 of all)" in do("local loss")
    assert do("p (x * w).shape") == "torch.Size([10, 2])\n"


def test_part_of_what_is_whole():
    assert part_of(5) == (5, "the same on every rank, or this rank's own")
