"""The comparison with other ways to train: its jobs train, and its table says what was measured."""

import ast
import json
from typing import Any

import pytest

from bench.contenders import Timing
from bench.faults import Figures, Recovery, Step, lost_per_kill, recovery
from bench.faults import table as table_of_faults
from bench.gpu import CELL, LINES, LOADER, ONE, PLAIN, SETUP, UNWATCHED, WARM, page
from bench.gpu import Figures as OnGpu
from bench.gpu import jobs as gpu_jobs
from bench.jobs import IMPORTS, STAMPS, jobs
from bench.report import before_and_after, picture, table

QUICK = {job.name: job for job in jobs(quick=True)}


@pytest.mark.parametrize("name", QUICK)
def test_a_job_trains_in_a_plain_cell(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = QUICK[name]
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(IMPORTS + job.setup, namespace)
    before = [parameter.detach().clone() for parameter in namespace["model"].parameters()]
    exec(job.cell, namespace)
    assert len(json.loads(STAMPS.read_text())) == job.epochs * job.steps
    assert all((old != new).any() for old, new in zip(before, namespace["model"].parameters(), strict=True))


@pytest.mark.parametrize("quick", [True, False])
def test_every_form_of_a_job_has_the_same_global_batch(quick):
    for job in jobs(quick=quick):
        for source in (job.cell, job.by_hand, job.script, job.for_accelerate):
            ast.parse(source)
            assert f"batch_size={job.batch_size}" in source
            assert f"islice(loader, {job.steps})" in source


def test_the_table_has_ratios_within_a_round():
    rounds: dict[str, list[Timing | None]] = {
        "ours": [Timing(1.0, 30.0, 2.0), Timing(3.0, 20.0, 4.0)],
        "theirs": [None, None],
        "torchrun": [Timing(10.0, 20.0, 12.0), Timing(12.0, 20.0, 13.0)],
    }
    lines = table("a job", rounds).splitlines()
    assert lines[4] == "| ours | 2 (1–3) | 0.175 (0.1–0.25) | 25 (20–30) | 1.25 (1–1.5) | 3 (2–4) |"
    assert lines[5] == "| theirs | failed | | | | |"


def test_the_same_figures_make_the_same_picture(tmp_path):
    rounds = {"ours": [Timing(1.0, 30.0, 2.0)], "torchrun": [Timing(10.0, 20.0, 12.0)]}
    for name in ("one.svg", "two.svg"):
        picture({"a job": rounds}, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def steps(*parts: tuple[int, float, int]) -> list[Step]:
    """Return steps of a tenth of a second: of each part the first one's number, when it begins, and how many they are."""
    return [Step(first + index, begin + (index + 1) / 10, pid=1) for first, begin, number in parts for index in range(number)]


def test_what_a_kill_costs_is_in_the_steps_of_the_rank():
    done = steps((1, 0.0, 50), (41, 6.0, 90))  # killed when it had done 50, and at step 40 again after a second
    found = recovery(done, killed=5.05)
    assert found is not None
    assert (found.again, found.new, found.repeated) == pytest.approx((1.05, 2.05, 10))
    assert recovery(done[:55], killed=5.05) is None, "nothing new yet"


def test_work_lost_is_what_the_quiet_pace_would_have_done():
    done = steps((1, 0.0, 50), (41, 6.0, 90), (126, 16.0, 90))
    assert lost_per_kill(done, [5.05, 15.05], 25.05) == pytest.approx((2.0 + 1.5) / 2, abs=0.1)


def test_faults_of_both_stand_beside_each_other():
    mine = Figures([0.1, 0.1], [Recovery(0.3, 0.5, 2), Recovery(0.5, 0.7, 0)], [0.6], [0.2])
    other = Figures([0.2, 0.2], [Recovery(3.0, 5.0, 10), Recovery(5.0, 7.0, 10)], [6.0], [2.0])
    lines = table_of_faults(mine, other, 30.0).splitlines()
    assert "| training again after, s | 0.4 (0.3–0.5) | 4 (3–5) | 0.1 (0.1–0.1) |" in lines
    assert "| throughput kept with a kill every 30 s | 0.98 (0.98–0.98) | 0.8 (0.8–0.8) | 1.22 (1.22–1.22) |" in lines


@pytest.mark.parametrize("job", gpu_jobs(tiny=True), ids=lambda job: job.name)
def test_a_job_for_gpus_trains_in_a_plain_cell(job):
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(SETUP.format(device="cpu") + job.setup + LOADER.format(batch_size=job.batch_size, steps=WARM + 2, workers=0), namespace)
    before = [parameter.detach().clone() for parameter in namespace["model"].parameters()]
    exec(CELL.format(half=job.half, synced=True, warm=WARM), namespace)
    assert len(namespace["figures"]["steps"]) == WARM + 1
    assert namespace["figures"]["rate"] > 0
    assert all((old != new).any() for old, new in zip(before, namespace["model"].parameters(), strict=True))


def test_each_job_for_gpus_is_one_in_small_too():
    def names(*, tiny: bool) -> list[str]:
        return [job.name.partition(",")[0].partition("-")[0] for job in gpu_jobs(tiny=tiny)]

    assert set(names(tiny=True)) == set(names(tiny=False))
    for job in gpu_jobs(tiny=False):
        ast.parse(job.setup)


def test_the_page_of_a_gpu_has_ratios_within_a_round():
    found = OnGpu(
        first={PLAIN: [9.0, 1.0, 1.0], ONE: [9.0, 2.0, 2.0], UNWATCHED: [1.0, 1.0]},
        rate={PLAIN: [100.0, 50.0], ONE: [95.0, 49.0], UNWATCHED: [95.0, 50.0]},
        stalls=[0.012],
        kept=[0.9],
        failed={list(LINES)[-1]: "OutOfMemoryError: no room"},
    )
    lines = page({"a job": found}, card="a card").splitlines()
    assert lines[8] == "| a job, one engine | 9.00, 2 (2–2) | 72 (49–95) | 0.965 (0.95–0.98) | 0.99 (0.98–1) | 0.9 (0.9–0.9) | 12 (12–12) |"
    assert lines[-1] == "| a job, two engines on the card | failed: OutOfMemoryError: no room | | | | | |"


def test_another_checkout_is_compared_within_a_round():
    rounds: dict[str, list[Timing | None]] = {
        "before: ours": [Timing(2.0, 30.0, 6.0), Timing(3.0, 20.0, 4.0), None],
        "ours": [Timing(1.0, 60.0, 3.0), Timing(3.0, 20.0, 4.0), Timing(1.0, 1.0, 1.0)],
        "torchrun": [],
    }
    (line,) = before_and_after(rounds)
    assert line == "ours, × before: to the first step 1.5 (1–2), steps/s 1.5 (1–2), until all is back 1.5 (1–2)"
