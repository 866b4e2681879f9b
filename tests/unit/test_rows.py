"""Rows that are taken at once are the batches that PyTorch puts together itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split

from jupyter_dtrain.engine.data.fetch import taking_rows

_plain = DataLoader.__iter__


def _data() -> TensorDataset:
    return TensorDataset(torch.randn(11, 2, 3), torch.arange(11), torch.rand(11, dtype=torch.float64) > 0.5)


LOADERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "in order": lambda: DataLoader(_data(), batch_size=4),
    "shuffled": lambda: DataLoader(_data(), batch_size=4, shuffle=True, drop_last=True),
    "a part": lambda: DataLoader(Subset(_data(), range(2, 9)), batch_size=3),
    "a part of a part": lambda: DataLoader(Subset(random_split(_data(), [8, 3])[0], np.array([1, 5, 2]).tolist()), batch_size=2),
    "a part by a tensor": lambda: DataLoader(Subset(_data(), torch.tensor([3, 1, 2])), batch_size=2),  # type: ignore[arg-type]
    "from the end": lambda: DataLoader(_data(), batch_sampler=[[-1, 2], [0, -11]]),
    "numpy's numbers": lambda: DataLoader(_data(), batch_sampler=[np.array([1, 2]), np.array([0])]),  # type: ignore[list-item]
    "no sample": lambda: DataLoader(TensorDataset(torch.zeros(0, 2)), batch_size=2),
    "columns": lambda: DataLoader(
        TensorDataset(torch.randn(4, 6).T, torch.randn(6, 3, 4, 4).to(memory_format=torch.channels_last)), batch_size=2
    ),
    "with a graph": lambda: DataLoader(TensorDataset(torch.randn(6, 2, requires_grad=True)), batch_size=2),
    "own collation": lambda: DataLoader(_data(), batch_size=4, collate_fn=len),
    "no batches": lambda: DataLoader(_data(), batch_size=None),
    "workers": lambda: DataLoader(_data(), batch_size=4, num_workers=1),
}


@pytest.mark.parametrize("name", LOADERS)
def test_batches_are_pytorchs_own(name):
    torch.manual_seed(0)
    loader = LOADERS[name]()
    torch.manual_seed(1)
    expected = list(_plain(loader))
    state = torch.get_rng_state()
    torch.manual_seed(1)
    found = list(taking_rows(_plain)(loader))
    assert torch.equal(torch.get_rng_state(), state)
    assert len(found) == len(expected)
    for batch, other in zip(found, expected, strict=True):
        assert type(batch) is type(other)
        for tensor, same in zip(batch, other, strict=True) if isinstance(batch, list | tuple) else [(batch, other)]:
            if isinstance(tensor, torch.Tensor):
                torch.testing.assert_close(tensor, same, rtol=0, atol=0, check_stride=True)
                assert tensor.requires_grad == same.requires_grad
            else:
                assert tensor == same


def test_rows_are_taken_at_once_and_not_one_by_one(monkeypatch):
    loader = DataLoader(Subset(_data(), range(10)), batch_size=5)
    monkeypatch.delattr(TensorDataset, "__getitem__")
    assert [batch[1].tolist() for batch in taking_rows(_plain)(loader)] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_a_row_that_is_not_there_is_pytorchs_own_error():
    loader = DataLoader(_data(), batch_sampler=[[0, 11]])
    with pytest.raises(IndexError) as expected:
        next(_plain(loader))
    with pytest.raises(IndexError) as found:
        next(taking_rows(_plain)(loader))
    assert str(found.value) == str(expected.value)


def test_a_changed_data_set_is_seen():
    subset = Subset(_data(), [0, 1])
    batches = iter(taking_rows(_plain)(DataLoader(subset, batch_size=1)))
    next(batches)
    subset.indices = [5, 6]
    assert next(batches)[1].tolist() == [6]
