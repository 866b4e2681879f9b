"""``--search``: from its line and the ranges of ``--vary`` to trials that are drawn."""

from __future__ import annotations

import builtins
import math

import pytest

from jupyter_dtrain.errors import UsageError
from jupyter_dtrain.notebook.cell_line import parse_cell_line
from jupyter_dtrain.options import Metric
from jupyter_dtrain.search import Range, Search
from jupyter_dtrain.trials.study import Study


def drawn(search, *vary, namespace=None):
    return Study(Search.parse(search), vary, {} if namespace is None else namespace, Metric("loss")).trials


def values(search, expression, name="x"):
    return [trial.values[name] for trial in drawn(search, (name, expression))]


def test_the_line_says_all_of_it():
    options = parse_cell_line("--vary lr=log:1e-4..1e-1 --vary width=16,64 --search asha:27,seed=3,min_resource=2 --best val_loss")
    assert options.vary == (("lr", "log:1e-4..1e-1"), ("width", "16,64"))
    assert options.search == Search(kind="asha", num_trials=27, seed=3, min_resource=2)
    assert str(options.search) == "asha:27,seed=3,min_resource=2,reduction_factor=3"
    assert str(Search.parse("random:20")) == "random:20,seed=0"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--vary lr=log:1e-4..1e-1", "a range is for a search: add --search random:20, or give values, such as lr=0.1,0.01"),
        ("--vary lr=0..1 --search random:5", "say what kind of range it is: log:1e-4..1e-1"),
        ("--vary lr=log:1e-1..1e-4 --search random:5", "the lower end comes first"),
        ("--vary lr=log:0..1 --search random:5", "a logarithmic range begins above 0"),
        ("--vary lr=loguniform:1..2 --search random:5", "this is no range. Write KIND:LOW..HIGH"),
        ("--vary lr=uniform:0...5 --search random:5", "this is no range. Write KIND:LOW..HIGH"),
        ("--vary lr=uniform:0..inf --search random:5", "this is no range. Write KIND:LOW..HIGH"),
        ("--vary lr=uniform:0..1e999 --search random:5", "1e999 is no number that can be used"),
        ("--vary lr=int:1..2.5 --search random:5", "2.5 is no whole number that can be used"),
        ("--vary lr=log:1..2:0.1 --search random:5", "only uniform and int have a step"),
        ("--vary lr=uniform:__import__('os')..1 --search random:5", "this is no range"),
        ("--search random:5", "--search random:5,seed=0 needs --vary"),
        ("--vary lr=1,2 --search asha:5", "stops trials by a metric: name it with --best"),
        ("--vary lr=1,2 --search random", "give KIND:TRIALS, such as random:20 or asha:27"),
        ("--vary lr=1,2 --search tpe:5", "give KIND:TRIALS"),
        ("--vary lr=1,2 --search random:0", "the number of trials is 0; give a whole number from 1 up"),
        ("--vary lr=1,2 --search random:5,min_resource=2", "'min_resource=2' is not understood; after random:5, give seed=0"),
        ("--vary lr=1,2 --search asha:5,reduction_factor=1 --best z", "reduction_factor is 1; give a whole number from 2 up"),
    ],
)
def test_what_cannot_be_searched_is_said_in_a_sentence(line, message):
    with pytest.raises(UsageError) as error:
        parse_cell_line(line)
    assert message in str(error.value)


@pytest.mark.parametrize("text", ["0.1,0.01", "lambda: ...", "'log:1..2'", "range(1, 3)", "{1: 2}", "x[1:2]", "1..real", "adam,sgd"])
def test_expressions_are_no_ranges(text):
    assert Range.parse(text, text) is None


def test_numbers_lie_in_their_range():
    logs = values("random:200", "log:1e-4..1e-1")
    assert all(1e-4 <= x <= 1e-1 for x in logs)
    assert 0.25 < sum(x < 1e-3 for x in logs) / 200 < 0.42, "a third of the decades"
    floats = values("random:200", "uniform:-1..3")
    assert all(-1 <= x <= 3 for x in floats) and 0.4 < sum(x < 1 for x in floats) / 200 < 0.6
    assert {*values("random:200", "int:3..7")} == {3, 4, 5, 6, 7}
    assert {*values("random:200", "int:16..70:16")} == {16, 32, 48, 64}
    assert {*values("random:200", "uniform:0..0.5:0.1")} == {0.0, 0.1, 0.2, 0.3, 0.4, 0.5}
    whole = values("random:200", "logint:1..1000000")
    assert all(type(x) is int and 1 <= x <= 1_000_000 for x in whole) and 0.3 < sum(x < 1000 for x in whole) / len(whole) < 0.6


def test_a_trial_has_the_very_number_that_is_shown():
    for trial in drawn("random:50", ("lr", "log:1e-5..1e-1"), ("near", "uniform:1.00001..1.00002"), ("width", "logint:1..999")):
        shown = dict(trial.texts)
        assert all(float(shown[name]) == value for name, value in trial.values.items())
        assert len(shown["lr"].replace(".", "").lstrip("0").partition("e")[0]) <= 4
    assert all(
        math.isclose(trial.values["near"], 1.000015, abs_tol=5.1e-6) for trial in drawn("random:5", ("near", "uniform:1.00001..1.00002"))
    )


def test_equal_seeds_draw_equal_trials():
    space = ("lr", "log:1e-4..1e-1"), ("kind", "adam,sgd"), ("width", "int:1..64")
    assert drawn("random:20,seed=5", *space) == drawn("random:20,seed=5", *space)
    assert drawn("random:20,seed=5", *space) == drawn("asha:20,seed=5", *space), "whatever is stopped early"
    assert drawn("random:20,seed=5", *space)[:7] == drawn("random:7,seed=5", *space), "more trials are more of the same"
    assert drawn("random:20,seed=5", *space) != drawn("random:20,seed=6", *space)


def test_lists_are_drawn_from_without_repeating():
    space = ("lr", "0.1,0.01,0.001"), ("width", "range(4)")
    labels = [trial.label for trial in drawn("random:12", *space)]
    assert sorted(labels) == sorted(f"lr={lr} width={width}" for lr in ("0.1", "0.01", "0.001") for width in range(4))
    assert labels != sorted(labels), "in any order"
    assert len(drawn("random:50", *space)) == 12, "there are no more"
    assert len({trial.label for trial in drawn("random:5", *space)}) == 5
    assert len(drawn("random:100", ("x", "int:1..6"), ("y", "uniform:0..1:0.25"))) == 30
    assert sorted(values("random:9", "logint:1..4")) == [1, 2, 3, 4]


def test_values_may_be_any_objects():
    kinds = {"one": [1], "two": [2]}
    found = drawn("random:2", ("x", "one,two"), namespace=kinds)
    assert {id(trial.values["x"]) for trial in found} == {id(kinds["one"]), id(kinds["two"])}


def test_optuna_keeps_its_own_words_and_level(capfd):
    import optuna

    before = optuna.logging.get_verbosity()
    drawn("random:3", ("x", "uniform:0..1"))
    assert optuna.logging.get_verbosity() == before
    assert capfd.readouterr() == ("", "")


def test_without_optuna_the_error_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def no_optuna(name, *args, **kwargs):
        if name.partition(".")[0] == "optuna":
            raise ImportError("No module named 'optuna'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_optuna)
    with pytest.raises(UsageError, match=r"needs Optuna, .*%pip install 'jupyter_dtrain\[search\]'"):
        drawn("random:3", ("x", "uniform:0..1"))
