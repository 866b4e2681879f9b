"""Generators without a seed: in the cell all engines have the same, and every time another one."""

GENERATORS = """%%distribute --engines 2
import random
import numpy as np, torch
import jupyter_dtrain as dtrain
drawn = []
for _ in range(2):
    drawn.append(np.random.default_rng().random())
drawn.append(np.random.RandomState().rand())
drawn.append(random.Random().random())
np.random.seed(); drawn.append(np.random.rand())
random.seed(); drawn.append(random.random())
torch.seed(); drawn.append(torch.rand(()).item())
if dtrain.is_main():
    np.random.default_rng()  # takes nothing from the others
drawn.append(np.random.default_rng().random())
drawn_by_all = dtrain.gather(drawn)
"""


def test_every_engine_has_the_same_and_every_run_another(notebook):
    notebook.run(GENERATORS)
    first, other = notebook.value("drawn_by_all")
    assert first == other
    assert len(set(first)) == len(first)
    notebook.run(GENERATORS)
    again, _ = notebook.value("drawn_by_all")
    assert not set(first) & set(again)


def test_samples_that_engines_load_have_their_own(notebook):
    notebook.run("""
import numpy as np, torch
from torch.utils.data import DataLoader, Dataset
class Noisy(Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, index):
        return torch.tensor(np.random.default_rng().random())
loader = DataLoader(Noisy(), batch_size=8)
""")
    notebook.run("%%distribute --engines 2\ndrawn = torch.cat(list(loader)).tolist()")
    assert len(set(notebook.value("drawn"))) == 16
