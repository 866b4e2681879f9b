"""With ``--strategy zero3`` over hosts each engine has rows of all that is trained, and none of them is lost with a host or an error."""

from __future__ import annotations

import pytest
import torch

from tests.conftest import one_of
from tests.hosts.test_several_hosts import STEP, TRAIN, WEIGHTS, hosts_of
from tests.hosts.test_zero1_on_hosts import (
    MOMENTS,
    WIDE,
    assert_all_same,
    check_after_error_of_one_rank,
    lose,
    started,
    state,
    with_a_snapshot,
)

BRIEF = TRAIN.format(epochs=2, pause=0)
NORMS = f"""
norms = []
for epoch in range(2):
    for x, y in loader:{STEP}
    norms.append([parameter.norm().item() for parameter in model.parameters()])
    norms.append([kept["exp_avg"].abs().sum().item() for kept in optimizer.state_dict()["state"].values()])
"""


@pytest.fixture(scope="module")
def expected(notebook):
    """What one process comes to in two epochs."""
    notebook.run(WIDE + BRIEF)
    return state(notebook)


@pytest.mark.parametrize("hosts", one_of(2, ["h1:2,h2:2", "h1:1,h2:1"]))
def test_a_cell_comes_to_the_same(notebook, expected, hosts):
    notebook.run(WIDE)
    cell = notebook.run(f"%%distribute --hosts {hosts} --strategy zero3\n{BRIEF}")
    assert cell.notices == []
    assert notebook.value("where") == "h1"
    assert_all_same(notebook, expected)


@pytest.mark.long
def test_the_next_cell_shards_nothing(notebook, expected):
    """On the same engines, whose connections for that are gone."""
    notebook.run(WIDE)
    notebook.run(f"%%distribute\n{BRIEF}")
    assert_all_same(notebook, expected)
    notebook.run(WIDE)
    notebook.run(f"%%distribute --strategy zero3\n{BRIEF}")
    assert_all_same(notebook, expected)


@pytest.mark.long
def test_what_the_cell_reads_is_whole(notebook):
    notebook.run(WIDE + NORMS)
    expected, norms = state(notebook), notebook.value("norms")
    notebook.run(WIDE)
    notebook.run(f"%%distribute --hosts h1:2,h2:1 --strategy zero3\n{NORMS}")
    assert_all_same(notebook, expected)
    assert notebook.value("norms") == [pytest.approx(of_epoch, abs=1e-9) for of_epoch in norms]


@pytest.mark.long
@pytest.mark.parametrize(("rank", "broken"), [(3, 14), (0, 8)])
def test_after_an_error_of_one_rank_all_of_it_is_there(notebook, rank, broken):
    """Rank 3 is on the second host, and has the broken sample: it has left when rank 0 reads its rows. Or rank 0 has it."""
    check_after_error_of_one_rank(notebook, "zero3", broken)


@pytest.mark.long
def test_after_an_error_of_all_it_is_there(notebook):
    notebook.run(WIDE + NORMS)
    expected = state(notebook)
    notebook.run(WIDE)
    failed = notebook.fail(f"%%distribute --hosts h1:2,h2:1 --strategy zero3\n{NORMS}\n1 / 0")
    assert failed.error[0] == "ZeroDivisionError"
    assert "zero3" not in failed.stderr + " ".join(failed.notices)
    assert_all_same(notebook, expected)


@pytest.fixture(scope="module")
def undisturbed(notebook):
    """What two engines on two hosts come to in eight epochs."""
    notebook.run(WIDE)
    notebook.run(f"%%distribute --hosts h1:1,h2:1 --strategy zero3\n{TRAIN.format(epochs=8, pause=0)}")
    return state(notebook)


def assert_same_bits(notebook, undisturbed):
    (weights, losses), moments = undisturbed
    assert notebook.value("losses") == losses
    for found, wanted in [*zip(notebook.value(WEIGHTS), weights, strict=True), *zip(notebook.value(MOMENTS), moments, strict=True)]:
        assert torch.equal(found, wanted)


@pytest.mark.long
def test_an_engine_is_killed(notebook, lab, undisturbed):
    cell, pids = started(notebook, "h1:1,h2:1", epoch=3, strategy="zero3")
    lab[2].run(["kill", "-9", pids[1]])
    notebook.finish(cell)
    assert cell.ok, cell.traceback
    assert any("Lost rank 1" in notice and "resuming from step" in notice for notice in cell.notices), cell.notices
    assert hosts_of(notebook) == ["h1", "h2"]
    assert_same_bits(notebook, undisturbed)


def rows_on(host):
    """Return the buffers of snapshots in a host's memory."""
    return set(host.run(["find", "/dev/shm", "-path", "*.blobs/*", "-type", "f"]).split())


@pytest.mark.long
@pytest.mark.parametrize("goes", [7, 6])
def test_a_host_is_switched_off(notebook, lab, undisturbed, goes):
    """That of rank 0 or that of the other one: its rows are on the other host, and not on the notebook's."""
    hosts = "h1:1,h6:1" if goes == 6 else "h7:1,h1:1"
    cell = with_a_snapshot(notebook, lab, hosts, goes, options="--checkpoint-every 1h", strategy="zero3")
    assert rows_on(lab[1]) and rows_on(lab[goes])
    assert not rows_on(lab[0])
    lose(lab, goes)
    notebook.finish(cell)
    assert cell.ok, cell.traceback
    assert any(f"the host h{goes} is lost" in notice and "resuming from step" in notice for notice in cell.notices), cell.notices
    assert hosts_of(notebook) == ["h1", "h1"]
    assert_same_bits(notebook, undisturbed)
