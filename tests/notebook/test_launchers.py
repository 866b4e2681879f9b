"""A launcher that another package brings: found by its name, and a cell runs on the engines that it starts."""

from __future__ import annotations

import pytest

from tests.notebook.conftest import IMPORTS

TOY = """
from jupyter_dtrain.cluster.launchers import LocalLauncher
from jupyter_dtrain.cluster.guarded_processes import GuardedProcesses

started = []

class Wrapped(GuardedProcesses):
    def start(self, name, argv, **options):
        if name.startswith("engine-"):
            started.append(name)
            argv, options["how"] = ["nice", "-n", "3", *argv], "exec"
        super().start(name, argv, **options)

class ToyLauncher(LocalLauncher):
    def processes(self, folders, on_exit):
        return Wrapped(folders, on_exit)
"""
ENTRY_POINTS = """
[jupyter_dtrain.launchers]
toy = toy_launcher:ToyLauncher
broken = toy_launcher:Missing
other = builtins:dict
"""
TRAIN = """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
"""
WHO = """
import os, torch.distributed as dist
starters = [None] * 2
dist.all_gather_object(starters, os.nice(0))
"""
SETUP = """
torch.manual_seed(1)
loader = DataLoader(TensorDataset(torch.randn(12, 6), torch.randn(12, 1)), batch_size=4, shuffle=True)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""


@pytest.fixture(scope="module")
def notebook(module_notebook, tmp_path_factory):
    """A notebook in whose environment a package has launchers."""
    site = tmp_path_factory.mktemp("site")
    (site / "toy_launcher.py").write_text(TOY)
    metadata = site / "toy_launcher-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-launcher\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    notebook = module_notebook()
    notebook.run(f"{IMPORTS}\nimport sys\nsys.path.append({str(site)!r})")
    return notebook


def test_a_cell_runs_on_two_engines_of_a_launcher_of_another_package(notebook):
    notebook.run(SETUP + TRAIN)
    expected = notebook.value("model.weight.detach().clone()")
    notebook.run(SETUP)
    notebook.run(f"%%distribute --launcher Toy --engines 2 --device cpu\n{WHO}{TRAIN}")
    assert notebook.value("starters") == [notebook.value("__import__('os').nice(0)") + 3] * 2
    assert notebook.value("__import__('toy_launcher').started") == ["engine-0", "engine-1"]
    assert (notebook.value("model.weight.detach()") - expected).abs().max() < 1e-6


@pytest.mark.long
def test_later_cells_share_its_engines_until_another_launcher_is_asked_for(notebook):
    notebook.run("%distribute start -n 2 --device cpu --launcher toy")
    engines = notebook.engines()
    for line in ("%distribute start", "%distribute start --launcher TOY"):
        notebook.run(line)
        assert notebook.engines() == engines
    started = notebook.value("__import__('toy_launcher').started")
    notebook.run("%distribute start -n 2 --device cpu --launcher local")
    assert not {*notebook.engines()} & {*engines}
    assert notebook.value("__import__('toy_launcher').started") == started


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "tooy",
            "there are broken, connect, htcondor, kubernetes, local, lsf, mpi, other, pbs, sge, slurm, ssh, toy. Did you mean toy?",
        ),
        ("broken", "toy_launcher:Missing cannot be used (AttributeError: "),
        ("other", "builtins:dict is no jupyter_dtrain.cluster.abstract_launcher.Launcher."),
    ],
)
def test_one_that_cannot_be_used_costs_no_cluster(notebook, name, said):
    notebook.run("%distribute start -n 2 --device cpu --launcher toy")
    engines = notebook.engines()
    cell = notebook.fail(f"%%distribute --launcher {name}\n1 + 1")
    assert cell.error[0] == "UsageError"
    assert f"--launcher {name}: " in cell.error[1]
    assert said in cell.error[1]
    assert notebook.engines() == engines
