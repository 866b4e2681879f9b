"""Values that are computed when one of them is read: in the cell's order and types, with one exchange."""

import torch

from jupyter_dtrain.engine.tensor.deferred import DeferredReduction


def to_local(value: float) -> DeferredReduction:
    return DeferredReduction(part=torch.tensor(value, dtype=torch.float64), dtype=torch.float32)


def two_ranks(exchanges: list[int]):
    """Return what sums over two ranks that have the same parts."""

    def all_sum(part: torch.Tensor) -> torch.Tensor:
        exchanges.append(part.numel())
        return 2 * part

    return all_sum


def test_each_operation_is_rounded_as_on_one_process():
    exchanges: list[int] = []
    total, plain = to_local(0.5), torch.tensor(1.0)
    for count in range(1, 40):
        mean = count / 7
        total, plain = DeferredReduction(torch.add, [total, to_local(mean / 2)]), plain + torch.tensor(mean, dtype=torch.float64).float()
    result = DeferredReduction(torch.mul, [total, 100])
    assert torch.equal(result.resolve(two_ranks(exchanges)), plain * 100)
    assert exchanges == [40]


def test_what_was_read_is_not_exchanged_again():
    exchanges: list[int] = []
    first = to_local(1.5)
    both = DeferredReduction(torch.add, [first, first])
    assert (first.num_pending, both.num_pending) == (1, 3)
    assert both.resolve(two_ranks(exchanges)).item() == 6
    more = DeferredReduction(torch.add, [both, to_local(1)])
    assert more.num_pending == 2  # a part and the sum
    assert more.resolve(two_ranks(exchanges)).item() == 8
    assert first.resolve(two_ranks(exchanges)).item() == 3
    assert exchanges == [1, 1]


def test_a_long_chain():
    value = to_local(0)
    for _ in range(5000):
        value = DeferredReduction(torch.add, [value, 1])
    assert value.resolve(two_ranks([])).item() == 5000
