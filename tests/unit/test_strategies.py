"""Strategies by name: what is registered, what is refused, and that the kernel needs no torch to know of them."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_dtrain import cluster_options, options, strategies
from jupyter_dtrain.cluster.launchers import find_launcher
from jupyter_dtrain.cluster_options import ClusterOptions, HostSpec
from jupyter_dtrain.engine.comm.mesh import Mesh
from jupyter_dtrain.engine.strategies.base import Strategy, load_strategy
from jupyter_dtrain.errors import UsageError
from jupyter_dtrain.options import RunOptions
from jupyter_dtrain.parallel_dims import ParallelDims, degrees_of
from jupyter_dtrain.shard_patterns import ShardPattern
from jupyter_dtrain.strategies import DEFAULT, Feature, StrategyInfo, available, find, register

OTHER = StrategyInfo(name="other", summary="is another one", implementation="json:JSONDecoder")


@pytest.fixture(autouse=True)
def known(monkeypatch):
    find(DEFAULT)
    monkeypatch.setattr(strategies, "_known", dict(strategies._known))


def test_find_knows_this_projects_own():
    assert [info.name for info in available()][:6] == ["auto", "zero1", "zero3", "pipeline", "tensor", "none"]
    assert find("none").owns_process_group
    assert not find("zero1").owns_process_group


@pytest.mark.parametrize("name", ["auto", "zero1", "zero3", "pipeline", "tensor", "none"])
def test_load_strategy_returns_the_class_of_each(name):
    assert issubclass(load_strategy(find(name)), Strategy)


def test_load_strategy_says_what_is_wrong_with_one():
    with pytest.raises(ImportError, match="--strategy other is json:JSONDecoder, which is no Strategy"):
        load_strategy(OTHER)
    with pytest.raises(ImportError, match=r"which the engines cannot import: .*no attribute 'Nothing'"):
        load_strategy(dataclasses.replace(OTHER, implementation="json:Nothing"))


def test_find_names_those_that_there_are_and_the_one_that_is_meant():
    with pytest.raises(UsageError, match=r"--strategy nothing: choose auto or zero1 or zero3 or pipeline or tensor or none\.$"):
        find("nothing")
    register(dataclasses.replace(OTHER, known_as=("nothing",)))
    with pytest.raises(UsageError, match=r"choose auto or zero1 or zero3 or pipeline or tensor or none or other\. other is another one\.$"):
        find("nothing")


def test_register_takes_one_of_a_name():
    register(OTHER)
    register(OTHER)
    assert find("other") is OTHER
    with pytest.raises(ValueError, match="There is a strategy 'other' already, json:JSONDecoder"):
        register(dataclasses.replace(OTHER, implementation="json:Other"))


def test_find_says_why_an_installed_one_cannot_be_used(tmp_path, monkeypatch):
    (tmp_path / "broken-1.0.dist-info").mkdir()
    (tmp_path / "broken-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (tmp_path / "broken-1.0.dist-info/entry_points.txt").write_text(
        "[jupyter_dtrain.strategies]\nmissing = no_such_package:INFO\nwrong = json:dumps\n"
        "nameless = jupyter_dtrain.engine.strategies.external:INFO\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=r"--strategy missing: no_such_package:INFO cannot be used \(ModuleNotFoundError: "):
        find("missing")
    with pytest.raises(UsageError, match=r"--strategy wrong: json:dumps is no jupyter_dtrain.strategies.StrategyInfo\."):
        find("wrong")
    with pytest.raises(UsageError, match=r"--strategy nameless: .*:INFO is named 'none', and its entry point 'nameless'\."):
        find("nameless")
    assert {"missing", "wrong", "nameless"}.isdisjoint(info.name for info in available())  # the help is shown all the same


GIVEN: dict[str, Any] = {
    "split": ("x",),
    "split_inputs": True,
    "batch_size": "per-rank",
    "split_eval": True,
    "semantics": "local",
    "rng": "per-rank",
    "batchnorm": "global",
    "checkpoint_activations": True,
    "balance": "auto",
    "compress": "bf16",
    "sync_every": 16,
    "verify": "first",
    "shard": (ShardPattern("*.experts", "col"),),
    "elastic": (1, 2),
    "best": options.Metric("loss"),
    "checkpoint_every": 10,
    "keep_checkpoints": 3,
    "keep_secrets": True,
}


@pytest.mark.parametrize("option", GIVEN)
def test_an_option_that_a_strategy_does_not_support_is_refused_with_both_names(option):
    given = {option: GIVEN[option]}
    RunOptions(strategy="tensor" if option == "shard" else "auto", **given)
    word = option.replace("_", "-")
    with pytest.raises(UsageError, match=f"--{word} needs .*, which --strategy none does not have: leave out one of the two"):
        RunOptions(strategy="none", **given)


def test_each_option_that_needs_something_of_a_strategy_is_tried_above():
    assert set(strategies.NEEDS) == set(GIVEN)


def test_a_command_that_a_strategy_does_not_support_is_refused():
    find("auto").require(Feature.PAUSE, "Pausing")
    with pytest.raises(UsageError, match="Pausing needs steps at whose end all engines wait, which --strategy none does not have"):
        find("none").require(Feature.PAUSE, "Pausing")


@pytest.mark.parametrize(
    ("strategy", "works"), [("auto", True), ("zero1", True), ("zero3", True), ("tensor", True), ("none", False), ("other", False)]
)
def test_hosts_take_a_strategy_that_says_that_it_works_on_several(strategy, works):
    register(OTHER)
    launcher, asked = find_launcher("ssh"), RunOptions(strategy=strategy)
    if works:
        launcher.check(asked)
        return
    with pytest.raises(UsageError, match=rf"--strategy {strategy} does not work on several hosts yet\. Remove it"):
        launcher.check(asked)


def test_a_mesh_has_as_many_engines_as_the_hosts_or_is_refused():
    def asked(*hosts):
        return RunOptions(mesh=ParallelDims.parse("dp=2,pp=2"), cluster=ClusterOptions(hosts=hosts))

    launcher = find_launcher("ssh")
    launcher.check(asked(HostSpec(name="a", num_engines=3), HostSpec(name="b", num_engines=1)))
    with pytest.raises(UsageError, match="--mesh dp=2,pp=2 needs 4 engines, but the hosts have 3"):
        launcher.check(asked(HostSpec(name="a", num_engines=2), HostSpec(name="b", num_engines=1)))
    with pytest.raises(UsageError, match=r"but some hosts have no number\. Set the numbers, as in --hosts a:2,b:2"):
        launcher.check(asked(HostSpec(name="a", num_engines=2), HostSpec(name="b")))


def test_no_other_code_asks_which_strategy_it_is():
    asked = re.compile(r"strategy(\.name)? (==|!=|in \()|isinstance\([^)]*Training\)|program_port is not None")
    package = Path(strategies.__file__).parent
    files = [path for path in package.rglob("*.py") if "strategies" not in path.parts]
    assert len(files) > 500
    found = [f"{path.name}:{number}" for path in files for number, line in enumerate(path.open(), 1) if asked.search(line)]
    assert found == []


def test_the_kernel_knows_them_without_torch():
    code = "import sys; from jupyter_dtrain import strategies; strategies.available(); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60).stdout == "False\n"


@pytest.mark.parametrize(
    ("rank", "degrees", "indices"),
    [(0, {"dp": 1}, {"dp": 0}), (2, {"dp": 3}, {"dp": 2}), (5, {"pp": 2, "dp": 2, "tp": 2}, {"pp": 1, "dp": 0, "tp": 1})],
)
def test_mesh_says_where_a_rank_is_along_each_axis(rank, degrees, indices):
    mesh = Mesh(rank, degrees)
    assert {axis: mesh.index(axis) for axis in degrees} == indices
    assert {axis: mesh.degree(axis) for axis in degrees} == degrees
    assert (mesh.degree("ep"), mesh.index("ep")) == (1, 0)


def test_mesh_knows_the_ranks_that_differ_along_one_axis():
    mesh = Mesh(3, {"dp": 2, "pp": 2})
    assert (mesh.ranks_along("dp"), mesh.ranks_along("pp"), mesh.ranks_along("tp")) == ([1, 3], [2, 3], [3])


@pytest.mark.parametrize(
    ("text", "strategy", "engines", "degrees"),
    [
        ("dp=2,pp=2", "pipeline", 4, {"dp": 2, "pp": 2}),
        ("pp=2,dp=3", "pipeline", 6, {"dp": 3, "pp": 2}),
        ("tp=2", "tensor", 2, {"tp": 2}),
        ("tp=2,dp=2", "tensor", 4, {"dp": 2, "tp": 2}),
        ("dp=1,tp=2", "tensor", 2, {"tp": 2}),
        ("dp=2,tp=1", "auto", 2, {"dp": 2}),
        ("dp=1, zero3=4", "zero3", 4, {"dp_shard": 4}),
        ("dp_replicate=2,dp_shard=3", "zero3", 6, {"dp": 2, "dp_shard": 3}),
        ("dp=3,pp=1", "auto", 3, {"dp": 3}),
        ("tp=1", "auto", 1, {"dp": 1}),
    ],
)
def test_a_mesh_says_how_many_engines_there_are_and_which_strategy_shares_a_model(text, strategy, engines, degrees):
    found = RunOptions(mesh=ParallelDims.parse(text))
    assert (found.strategy, found.cluster.num_engines) == (strategy, engines)
    assert degrees_of(find(strategy), found.mesh, engines) == degrees


def test_without_a_mesh_all_ranks_lie_along_the_axis_of_the_strategy():
    assert [degrees_of(find(name), None, 3) for name in ("auto", "pipeline", "none")] == [{"dp": 3}, {"pp": 3}, {"dp": 3}]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mesh": "dp=2,pp=2", "engines": 3}, "is dp=2 × pp=2 = 4 engines, and there are to be 3: give degrees whose product is 3."),
        ({"mesh": "dp=2,pp"}, "--mesh dp=2,pp: give axes with as many engines as lie along each, such as --mesh dp=2,pp=2."),
        (
            {"mesh": "dp=2,ep=2"},
            "no axis ep; choose dp or dp_shard (--strategy zero3) or pp (--strategy pipeline) or tp",
        ),
        ({"mesh": "dp=2,dp=2"}, "the axis dp is there twice"),
        ({"mesh": "pp=2,tp=2"}, "pp and tp cannot be combined; give one of them beside dp."),
        ({"mesh": "tp=2", "strategy": "pipeline"}, "and --strategy pipeline, which shares the work along the axis pp: leave out one"),
        (
            {"mesh": "dp=2", "strategy": "none"},
            "and --strategy none, which shares the work of no mesh: leave out one of the two.",
        ),
        ({"mesh": "dp=2,pp=2", "elastic": (2, 4)}, "--elastic changes the number of engines, and --mesh dp=2,pp=2 sets it: leave out one"),
        ({"mesh": "dp=2,pp=2", "vary": (("lr", "1,2"),)}, "--vary and --mesh cannot be combined yet: omit one of them."),
    ],
)
def test_degrees_that_cannot_be_had_are_refused_with_all_of_them(given, said):
    mesh, engines = given.pop("mesh"), given.pop("engines", None)
    with pytest.raises(UsageError, match=re.escape(said)):
        RunOptions(mesh=ParallelDims.parse(mesh), cluster=cluster_options.ClusterOptions(num_engines=engines), **given)


def test_mesh_has_no_rank_beyond_its_size():
    with pytest.raises(ValueError, match="rank 4 of a mesh of dp=2 × tp=2"):
        Mesh(4, {"dp": 2, "tp": 2})
