"""``--strategy zero3``: each engine has rows of parameters, gradients and moments, and none of it is lost with one."""

from __future__ import annotations

import os
import signal

import pytest

from tests.faults.disturbed import SETUP, Disturbed, Killed


def run_and_kill(run: Disturbed, strategy: str) -> None:
    """Run the cell to its end, whose second engine is killed behind a snapshot; it comes to what it comes to undisturbed."""
    cell = run.start(f"--strategy {strategy}")
    run.wait_for_snapshot(cell)
    os.kill(run.pids[1], signal.SIGKILL)
    assert "Lost rank 1 (its process has ended): resuming from step " in run.finish(cell)


def test_an_engine_is_killed(two):
    """What the cell comes to is what it comes to undisturbed, and with all of it on each engine."""
    run_and_kill(two, "zero3")


@pytest.fixture(scope="module")
def killed(module_notebook, two: Disturbed) -> Killed:
    return Killed.behind_a_checkpoint(module_notebook(), two, "zero3")


@pytest.mark.long
@pytest.mark.parametrize("engines", [1, 2, 3])
def test_resumed_in_a_new_kernel_on_any_number_of_engines(new_notebook, killed, tmp_path, engines):
    killed.check_resumed(new_notebook, tmp_path, engines)


MADE = pytest.mark.parametrize("first", [pytest.param("", id="notebook's"), pytest.param("make()", id="cell's")])


@MADE
@pytest.mark.parametrize("strategy", ["zero3", *(pytest.param(one, marks=pytest.mark.long) for one in ("pipeline", "tensor"))])
def test_all_is_sharded_after_a_kill_as_before(two, strategy, first):
    """What is read from a snapshot has memory like an array's, that cannot be resized, but no array looks into it."""
    with two.another(options=f"--strategy {strategy}") as run:
        cell = run.start(f"--strategy {strategy}", first=first)
        run.wait_for_snapshot(cell)
        os.kill(run.pids[1], signal.SIGKILL)
        said = run.finish(cell)
    before, lost, after = said.partition("Lost rank 1 (its process has ended): resuming from step ")
    assert lost
    assert set(after.splitlines()[1:]) <= set(before.splitlines()), "such as that something is not sharded"


FAILING = SETUP.replace(
    "AdamW(model.parameters()", "AdamW([dict(params=model[:3].parameters()), dict(params=model[3:].parameters())]"
).replace(
    "        optimizer.step()\n",
    """
        optimizer.param_groups[1]["betas"] = (0.9, "no") if batch % 5 == 2 else (0.9, 0.999)
        try:
            optimizer.step()
        except TypeError:
            pass
""",
)


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["zero3", "pipeline", "tensor"])
def test_an_engine_is_killed_after_errors_in_steps(two, strategy):
    """The cell catches them after some parameters were updated."""
    with two.another(FAILING, options=f"--strategy {strategy}") as run:
        run_and_kill(run, strategy)


CONVERTING = SETUP.replace("nn.Linear(96, 2)\n    )", "nn.Linear(96, 2)\n    ).float()").replace("model.train()", "model.double().train()")


@pytest.mark.parametrize("strategy", ["zero3", *(pytest.param(one, marks=pytest.mark.long) for one in ("pipeline", "tensor"))])
def test_an_engine_is_killed_after_the_cell_has_converted_the_model(two, strategy):
    with two.another(CONVERTING, options=f"--strategy {strategy}") as run:
        run_and_kill(run, strategy)
        assert run.notebook.value("{str(p.dtype) for p in model.parameters()}") == {"torch.float64"}


HOLDING = SETUP.replace(
    "    scheduler = torch",
    "    F.cross_entropy(model(torch.ones(2, 12)), torch.tensor([0, 1])).backward()\n    held = [p.grad for p in model.parameters()]\n"
    "    scheduler = torch",
).replace("zero_grad()", "zero_grad(set_to_none=False)")
HELD = "([g.numpy().tobytes() for g in held], [g is p.grad for g, p in zip(held, model.parameters())])"


@pytest.mark.parametrize("strategy", ["zero3", *(pytest.param(one, marks=pytest.mark.long) for one in ("pipeline", "tensor"))])
def test_gradients_that_the_notebook_holds_are_those_of_the_model_after_a_kill(two, strategy):
    with two.another(HOLDING.replace("loader, history", "loader, history, held"), options=f"--strategy {strategy}") as run:
        expected = run.notebook.value(HELD)
        run_and_kill(run, strategy)
        assert run.notebook.value(HELD) == expected
        assert all(expected[1])
