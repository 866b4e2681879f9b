"""What a run records of each cell of the corpus without a word in it: as a plain run's own optimizers, models, loaders and seed are."""

from __future__ import annotations

from typing import Any

import pytest

from tests.notebook.corpus_cells import CELLS
from tests.notebook.test_corpus import DRAW_WHEN_IMPORTED, FORGET, SEEDS

pytestmark = pytest.mark.long

ALIKE = 8
"""Objects of a kind that are described, at most."""
SPY = """
def _spy():
    import gc
    from torch.optim.optimizer import register_optimizer_step_pre_hook
    from torch.utils.data import DataLoader
    seen = dict(optimizers=[], batches=[], models=[], seed=None)
    known, loader_of_last_batch = [], []

    def is_new(obj):
        return not any(obj is one for one in known) and not known.append(obj)

    def on_training():
        if seen["seed"] is None:
            seen["seed"] = _torch.initial_seed()
        if loader_of_last_batch and is_new(loader_of_last_batch[0]):
            loader = loader_of_last_batch[0]
            seen["batches"].append(loader.batch_size or getattr(loader.batch_sampler, "batch_size", None))

    def on_step(optimizer, args, kwargs):
        on_training()
        if not is_new(optimizer):
            return
        rates = [float(group["lr"]) for group in optimizer.param_groups if group.get("lr") is not None]
        seen["optimizers"].append((type(optimizer).__name__, rates))
        trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
        modules = [obj for obj in gc.get_objects() if issubclass(type(obj), _torch.nn.Module) and "_parameters" in vars(obj)]
        for module in modules:
            inside = [p for p in module.parameters() if not isinstance(p, _torch.nn.UninitializedParameter)]
            if any(id(p) in trained for p in inside):
                seen["models"].append((type(module).__name__, sum(p.numel() for p in inside)))

    backward, iterate = _torch.autograd.backward, DataLoader.__iter__

    def noticed_backward(*args, **kwargs):
        on_training()
        return backward(*args, **kwargs)

    def loader_iter(loader):
        iterator = iterate(loader)
        inner = iterator._next_data
        def next_data():
            batch = inner()
            loader_of_last_batch[:] = [loader]
            return batch
        iterator._next_data = next_data
        return iterator

    _torch.autograd.backward, DataLoader.__iter__ = noticed_backward, loader_iter
    hook = register_optimizer_step_pre_hook(on_step)

    def end():
        _torch.autograd.backward, DataLoader.__iter__ = backward, iterate
        hook.remove()
        return seen

    return end
_seen = _spy()
"""
"""Looks at what a plain run trains with: what steps, which loader the last batch before a step or a backward pass is from."""


@pytest.fixture(scope="module")
def notebook(module_notebook):
    opened = module_notebook()
    opened.run(DRAW_WHEN_IMPORTED + "%load_ext jupyter_dtrain\n%distribute start -n 2 --device cpu")
    return opened


def described(values: dict[str, Any], kind: str, *facts: str) -> list[Any]:
    """Return what is recorded of all objects of a kind: of `optimizer`, `optimizer2`, …, each a tuple with those `facts`."""
    kinds = [kind, *(f"{kind}{number}" for number in range(2, 1 + ALIKE))]
    return [(values[name], *(values.get(f"{name}.{fact}") for fact in facts)) for name in kinds if name in values]


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_the_hyperparameters_of_a_cell_are_those_of_a_plain_run(notebook, cell):
    notebook.run(FORGET + SEEDS)
    notebook.run(cell.setup)
    notebook.run(SPY)
    try:
        notebook.run(cell.cell)
    finally:
        seen = notebook.value("_seen()")
        notebook.value(cell.compare)  # which takes out again what the cell has put into libraries
    notebook.run(FORGET + SEEDS)
    notebook.run(cell.setup)
    notebook.run(f"%%distribute --engines 2 --name {cell.name}\n{cell.cell}")
    values = notebook.value("__import__('jupyter_dtrain').find_run().hyperparameters")
    notebook.value(cell.compare)

    optimizers = described(values, "optimizer", "lr")
    for name, rates in seen["optimizers"]:
        # One rate alone is a number; those of several groups, where they differ, are told as a list.
        told = (rates[0] if len(set(rates)) == 1 else str(rates)) if rates else None
        assert (name, told) in optimizers or len(optimizers) == ALIKE, f"{name} with {told} among {optimizers}"
    models = described(values, "model", "parameters")
    for model in models if seen["optimizers"] else []:
        assert model in seen["models"], f"{model} among {seen['models']}"
    assert models or not seen["models"]
    if seen["seed"] is not None:
        assert values["seed"] == seen["seed"]
    sizes = described(values, "batch_size")
    for size in seen["batches"]:
        assert size is None or (size,) in sizes or len(sizes) == ALIKE, f"{size} among {sizes}"
    assert seen["optimizers"] or not optimizers
