"""What all ranks hold alike is copied once: who copies what, and how it is noticed that they do not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from jupyter_dtrain.engine.dedup import SMALLEST, Apart, Common, Held
from jupyter_dtrain.serialization.leaves import Leaf
from jupyter_dtrain.serialization.pickler import Packed


def trained(seed: int = 0, width: int = 256) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """Return a model and its optimizer after a step, the same each time."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, width), nn.Linear(width, width), nn.Linear(width, 2))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
    return model, optimizer


def test_each_copies_about_as_much_and_all_of_it_is_copied_once():
    *_, optimizer = trained()
    ranks = [Common([optimizer, "text", optimizer], rank=rank, world_size=3) for rank in range(3)]
    copied = [rank.add_own(Packed(b""))[0] for rank in ranks]
    sizes = [sum(buffer.nbytes for buffer in packed.buffers) for packed in copied]
    assert sum(sizes) == 4 * 256 * 256 * 4  # the large layer's weights, gradients and two moments; what is small everyone has
    assert max(sizes) <= min(sizes) + 256 * 256 * 4
    numbers = [set(rank.add_own(Packed(b""))[1]) for rank in ranks]
    assert sorted(number for part in numbers for number in part) == list(range(4))
    assert [rank.bytes_of_others(on_cpu=True) for rank in ranks] == [sum(sizes) - size for size in sizes]


def test_what_is_added_is_found_by_its_number():
    model, optimizer = trained()
    common = Common([optimizer], rank=0, world_size=1)
    packed, own = common.add_own(Packed(b"", [Leaf("array", "uint8", (2,))], [memoryview(b"ab")]))
    weight = next(model[1].parameters()).untyped_storage()
    index = own[common.elsewhere()[weight._cdata]]
    assert bytes(packed.buffers[index]) == bytes(weight.tolist())
    assert bytes(packed.buffers[0]) == b"ab"


@pytest.mark.parametrize("place", [0, 256 * 256 - 1])
def test_ranks_that_do_not_hold_the_same_are_found(place):
    (model, one), (_, same), (_, other) = trained(), trained(), trained(seed=1)
    digest, *others = (Common([optimizer], rank=0, world_size=2).digest() for optimizer in (one, same, other))
    assert others[0] == digest != others[1]
    with torch.no_grad():
        next(model[1].parameters()).view(-1)[place] += 1
    assert Common([one], rank=0, world_size=2).digest() != digest


def test_what_one_rank_alone_has_is_copied_by_that_one():
    model, optimizer = trained()
    moments = [kept for key, kept in optimizer.state[next(model[1].parameters())].items() if key != "step"]
    of_rank_1 = [Held(moment.untyped_storage(), 1, "cpu") for moment in moments]
    apart = Apart(frozenset([id(optimizer)]), tuple(of_rank_1))
    ranks = [Common([optimizer], rank=rank, world_size=3, apart=apart) for rank in range(3)]
    assert ranks[0].owners == ranks[1].owners == ranks[2].owners
    assert sorted(ranks[0].owners[:2]) == [0, 2], "the weight and its gradient, which all have: rank 1 has enough to copy"
    assert ranks[0].owners[2:] == [1, 1]
    digest = ranks[0].digest()
    moments[0].fill_(1)
    assert Common([optimizer], rank=0, world_size=3, apart=apart).digest() == digest, "others have something that stands for it"
    only = Common([], rank=1, world_size=3, apart=apart)
    assert len(only.add_own(Packed(b""))[1]) == 2


def test_what_stands_for_something_on_a_device_is_written_as_that():
    held = Held(torch.empty(SMALLEST).untyped_storage(), 1, "cuda")
    common = Common([], rank=0, world_size=2, apart=Apart(frozenset([1]), (held,)))
    packed = Packed(b"", [Leaf("storage", "uint8", (4 * SMALLEST,))], [memoryview(b"")], {0: 0})
    assert [leaf.device for leaf in common.add_own(packed)[0].leaves] == ["cuda"]
    assert (common.bytes_of_others(on_cpu=False), common.bytes_of_others(on_cpu=True)) == (4 * SMALLEST, 0)


def test_what_is_small_or_of_another_kind_is_not_asked_about():
    _, small = trained(width=16)
    sparse = nn.Embedding(SMALLEST, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(sparse.parameters())
    sparse(torch.tensor([1])).sum().backward()
    common = Common([small, optimizer], rank=0, world_size=2)
    assert common.elsewhere().keys() == {sparse.weight.untyped_storage()._cdata}
