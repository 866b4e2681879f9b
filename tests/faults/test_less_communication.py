"""Gradients in 16 bits, steps between exchanges, and an engine that is killed: the same bits as undisturbed."""

from __future__ import annotations

import os
import signal

import pytest

from tests.faults.disturbed import STATE


@pytest.mark.long
@pytest.mark.parametrize(("engines", "options"), [("two", "--compress bf16"), ("three", "--compress fp16 --strategy zero1")])
def test_an_engine_is_killed(request, engines, options):
    run = request.getfixturevalue(engines)
    cell = run.notebook.finish(run.start(options))
    assert cell.ok, cell
    expected = run.notebook.value(STATE)
    assert expected != run.expected  # which has gone by the exact exchange
    cell = run.start(options)
    run.wait_for_snapshot(cell)
    os.kill(run.pids[1], signal.SIGKILL)
    run.notebook.finish(cell)
    assert cell.ok, cell
    assert "resuming from step " in cell.stderr
    assert run.notebook.value(STATE) == expected


@pytest.mark.long
@pytest.mark.parametrize(
    ("engines", "rank", "first"), [("two", 0, ""), ("two", 1, ""), ("two", 1, "make()"), ("three", 2, ""), ("three", 0, "make()")]
)
def test_an_engine_is_killed_between_exchanges_with_sync_every(request, engines, rank, first):
    """Also of a model that the cell makes: it is read from the snapshot into memory that cannot be resized."""
    run = request.getfixturevalue(engines)
    cell = run.notebook.finish(run.start("--sync-every 4", first=first))
    assert cell.ok, cell
    expected = run.notebook.value(STATE)
    assert expected != run.expected
    cell = run.start("--sync-every 4", first=first)
    run.wait_for_snapshot(cell)
    os.kill(run.pids[rank], signal.SIGKILL)
    run.notebook.finish(cell)
    assert cell.ok, cell
    assert "resuming from step " in cell.stderr
    assert run.notebook.value(STATE) == expected
