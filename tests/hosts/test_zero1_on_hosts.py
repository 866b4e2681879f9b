"""With ``--strategy zero1`` over hosts each keeps a part of what the optimizer keeps, and none of it is lost with a host or an error."""

from __future__ import annotations

import pytest

from tests.hosts.test_checkpoints_on_hosts import CHECKPOINTS, end_agents
from tests.hosts.test_several_hosts import SETUP, STEP, TRAIN, assert_same, hosts_of, trained

WIDE = SETUP.replace("nn.Linear(6, 16)", "nn.Linear(6, 128), nn.ReLU(), nn.Linear(128, 128)").replace("nn.Linear(16", "nn.Linear(128")
MOMENTS = "[value.clone() for kept in optimizer.state.values() for value in kept.values()]"
READING = f"""
seen = []
for epoch in range(2):
    for x, y in loader:{STEP}
    seen.append([kept["exp_avg"].abs().sum().item() for kept in optimizer.state_dict()["state"].values()])
"""
FRAGILE = """
class Fragile(TensorDataset):
    broken = None

    def __getitem__(self, index):
        if index == self.broken:
            raise ValueError("a broken sample")
        return super().__getitem__(index)

data = Fragile(*data.tensors)
loader = DataLoader(data, batch_size=8)
"""
FAILING = f"""
for epoch in range(2):
    data.broken = {{broken}} if epoch else None
    for x, y in loader:{STEP}
"""


def state(notebook):
    return trained(notebook), notebook.value(MOMENTS)


def assert_all_same(notebook, expected):
    assert_same(notebook, expected[0])
    found = notebook.value(MOMENTS)
    assert len(found) == 18
    for moment, wanted in zip(found, expected[1], strict=True):
        assert (moment - wanted).abs().max() < 1e-9


@pytest.fixture(scope="module")
def expected(notebook):
    """What one process comes to in eight epochs."""
    notebook.run("from pathlib import Path\nfrom jupyter_dtrain.checkpoint.folder import CheckpointFolder")
    notebook.run(WIDE + TRAIN.format(epochs=8, pause=0))
    return state(notebook)


def started(notebook, hosts, *, epoch, pause=0.1, options="", strategy="zero1"):
    """Start the long cell on `hosts`, and return it when it is through with `epoch`, with the pids of the engines."""
    notebook.run(WIDE)
    notebook.run(f"%distribute start --hosts {hosts}")
    pids = notebook.engines()
    cell = notebook.start(f"%%distribute --strategy {strategy} {options}\n{TRAIN.format(epochs=8, pause=pause)}")
    notebook.wait_for_stdout(cell, f"epoch {epoch}")
    return cell, pids


def with_a_snapshot(notebook, lab, hosts, goes, **options):
    """Start the long cell on `hosts`, which is slow until one of them goes, and return it when it has a snapshot to go on from."""
    for host in (lab[1], lab[goes]):
        host.run(["touch", "/root/slow"])
    cell, _ = started(notebook, hosts, epoch=0, pause='0.8 if os.path.exists("/root/slow") else 0', **options)
    notebook.wait(lambda: len(parts_on(lab[0])) > 1 or not cell.running, "a snapshot", cell)
    assert cell.running, "It has ended before there was a snapshot."
    return cell


def parts_on(host):
    """Return what ranks have for themselves of snapshots, in a host's memory."""
    return set(host.run(["find", "/dev/shm", "-name", "[0-9]*-[0-9]", "-not", "-path", "*.blobs/*"]).split())


def lose(lab, goes):
    """Switch a host off, and let the cell be fast on the other one."""
    lab[goes].lose()
    lab[1].run(["rm", "/root/slow"])


@pytest.mark.long
def test_what_the_cell_reads_of_the_optimizer_is_whole(notebook):
    notebook.run(WIDE + READING)
    expected, seen = state(notebook), notebook.value("seen")
    notebook.run(WIDE)
    notebook.run(f"%%distribute --hosts h1:2,h2:1 --strategy zero1\n{READING}")
    assert_all_same(notebook, expected)
    assert notebook.value("seen") == [pytest.approx(of_epoch, abs=1e-9) for of_epoch in seen]
    notebook.run(f"%%distribute --strategy zero1\n{READING}")  # the next cell goes on with it
    assert {kept.item() for kept in notebook.value("[kept['step'] for kept in optimizer.state.values()]")} == {24.0}


@pytest.mark.parametrize(("rank", "broken"), [(0, 8), (3, 14)])
def test_after_an_error_of_one_rank_the_state_of_all_is_there(notebook, rank, broken):
    """Rank 3 is on the second host, and has the broken sample: the others have not met with the error. Or rank 0 has it."""
    check_after_error_of_one_rank(notebook, "zero1", broken)


def check_after_error_of_one_rank(notebook, strategy, broken):
    """Compare what an error leaves of a cell on four ranks with what it leaves of one process."""
    cell = FAILING.format(broken=broken)
    notebook.run(WIDE + FRAGILE)
    notebook.fail(cell)
    expected = state(notebook)
    assert len(expected[0][1]) == 7
    notebook.run(WIDE + FRAGILE)
    failed = notebook.fail(f"%%distribute --hosts h1:2,h2:2 --strategy {strategy}\n{cell}")
    assert failed.error == ("ValueError", "a broken sample")
    assert strategy not in failed.stderr + " ".join(failed.notices)
    assert_all_same(notebook, expected)


def test_after_an_error_of_all_the_state_is_there(notebook):
    notebook.run(WIDE + READING)
    expected = state(notebook)
    notebook.run(WIDE)
    failed = notebook.fail(f"%%distribute --hosts h1:2,h2:2 --strategy zero1\n{READING}\n1 / 0")
    assert failed.error[0] == "ZeroDivisionError"
    assert "zero1" not in failed.stderr + " ".join(failed.notices)
    assert_all_same(notebook, expected)


@pytest.mark.long
def test_an_engine_that_keeps_moments_is_killed(notebook, lab, expected):
    cell, pids = started(notebook, "h1:1,h2:1", epoch=3)
    lab[2].run(["kill", "-9", pids[1]])
    notebook.finish(cell)
    assert cell.ok, cell.traceback
    assert any("Lost rank 1" in notice and "resuming from step" in notice for notice in cell.notices), cell.notices
    assert hosts_of(notebook) == ["h1", "h2"]
    assert_all_same(notebook, expected)


@pytest.mark.long
@pytest.mark.parametrize("goes", [5, 4])
def test_a_host_that_keeps_moments_is_switched_off(notebook, lab, expected, goes):
    """That of rank 0 or that of the other one: a snapshot counts once what each alone has is on the notebook's host as well."""
    hosts = "h1:1,h4:1" if goes == 4 else "h5:1,h1:1"
    cell = with_a_snapshot(notebook, lab, hosts, goes)
    lose(lab, goes)
    notebook.finish(cell)
    assert cell.ok, cell.traceback
    assert any(f"the host h{goes} is lost" in notice and "resuming from step" in notice for notice in cell.notices), cell.notices
    assert hosts_of(notebook) == ["h1", "h1"]
    assert_all_same(notebook, expected)


@pytest.mark.long
def test_a_checkpoint_goes_on_on_more_engines_and_on_the_notebooks_host(notebook, lab, expected):
    cell, _ = started(notebook, "h1:1,h2:1", epoch=2, options="--checkpoint-every 5")
    end_agents(lab[1], lab[2])
    notebook.finish(cell)
    assert cell.error[0] == "ClusterError"
    assert max(notebook.value(CHECKPOINTS)) >= 10
    resumed = notebook.start("%distribute resume --hosts h1:1,h2:2")
    notebook.wait_for_stdout(resumed, "epoch 4")
    end_agents(lab[1], lab[2])
    notebook.finish(resumed)
    assert resumed.error[0] == "ClusterError"
    notebook.run("%distribute stop")
    notebook.run("%distribute resume --engines 2 --launcher local")
    assert hosts_of(notebook) == ["h0", "h0"]
    assert_all_same(notebook, expected)
    notebook.run("%distribute stop")
