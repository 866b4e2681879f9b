"""A cell that awaits outside of functions runs to its end where any other cell runs."""

from __future__ import annotations

import asyncio
import decimal
import gc
import threading
from typing import Any

import pytest

from jupyter_dtrain.engine.cell import run_cell


class Stop(BaseException):
    """Like the one that ends a run: no handler of the cell's catches it."""


def run(source: str, **names: object) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "__main__", **names}
    namespace["last"] = run_cell(f"import asyncio, threading\n{source}", "<cell>", namespace)
    return namespace


def within_a_loop(source: str, **names: object) -> dict[str, Any]:
    """Run a cell as an engine does: called from a loop that stands still meanwhile and goes on afterwards."""

    async def engine():
        before = asyncio.current_task()
        found = run(source, **names)
        await asyncio.sleep(0)
        assert asyncio.current_task() is before
        return found

    return asyncio.run(engine())


CELL = """
async def double(number):
    await asyncio.sleep(0)
    return 2 * number

async def numbers():
    for number in range(3):
        yield number

doubled = await asyncio.gather(double(1), double(2))
listed = [number async for number in numbers()]
async with asyncio.timeout(60):
    thread = threading.current_thread()
await double(sum(doubled))
"""


@pytest.mark.parametrize("call", [run, within_a_loop])
def test_a_cell_awaits(call):
    found = call(CELL)
    assert (found["doubled"], found["listed"], found["last"]) == ([2, 4], [0, 1, 2], 12)
    assert found["thread"] is threading.main_thread()


@pytest.mark.parametrize("error", [ValueError, Stop, KeyboardInterrupt])
def test_what_ends_the_cell_comes_out(error):
    with pytest.raises(error):
        within_a_loop("await asyncio.sleep(0)\nraise error", error=error)


def test_a_task_that_nobody_awaited_is_cancelled_at_the_end_of_the_cell():
    left: list[str] = []
    found = within_a_loop(
        """
async def wait():
    try:
        await asyncio.Event().wait()
    finally:
        left.append("cleaned up")

task = asyncio.create_task(wait())
await asyncio.sleep(0)
""",
        left=left,
    )
    assert found["task"].cancelled()
    assert left == ["cleaned up"]


def test_a_cell_that_does_not_await_runs_in_the_loop_around_it():
    found = within_a_loop("loop = asyncio.get_running_loop()")
    assert found["loop"].is_closed()  # it was the engine's


CONTEXT = """
import contextvars, decimal, logging
level, seen = contextvars.ContextVar("level", default=0), []
{begin}

async def raised():
    level.set(level.get() + 10)
    return level.get()

for _ in range(3):
    level.set(level.get() + 1)
    await asyncio.sleep(0)
    seen.append(level.get())
seen.append(await raised())
seen.append(await asyncio.create_task(raised()))
decimal.getcontext().prec = 3
{last}
"""


@pytest.mark.parametrize("call", [run, within_a_loop])
@pytest.mark.parametrize(
    "last", ["level.get(), decimal.getcontext().prec", "(await asyncio.sleep(0, level.get())), decimal.getcontext().prec"]
)
@pytest.mark.parametrize("begin", ["", "await asyncio.sleep(0)"])
def test_context_variables_of_a_cell_that_awaits(call, last, begin):
    with decimal.localcontext():  # which the cell changes
        found = call(CONTEXT.format(begin=begin, last=last))
    assert (found["seen"], found["last"]) == ([1, 2, 3, 13, 23], (13, 3))
    assert found["level"].get() == 0  # it was a task of its own, as in the notebook


def test_only_the_last_line_awaits():
    found = run(
        "import contextvars\nlevel = contextvars.ContextVar('level')\nlevel.set(3)\nasync def read(): return level.get()\nawait read()"
    )
    assert (found["last"], found["level"].get(None)) == (3, None)
    found = run("import contextvars\nlevel = contextvars.ContextVar('level')\nlevel.set(3)\nlevel.get()")
    assert (found["last"], found["level"].get()) == (3, 3)


def test_an_error_of_a_cell_that_awaits_is_reported_once(caplog):
    for error in (ValueError, Stop):
        with pytest.raises(error):
            within_a_loop("await asyncio.sleep(0)\nraise error", error=error)
    gc.collect()
    assert not caplog.records
