"""Plans of loaders: what divides the batches of each kind, and for how long a plan holds."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from jupyter_dtrain.engine.data.loader_plan import Division, LoaderPlans
from jupyter_dtrain.engine.tensor.batch_shard import BatchSharding

ROWS = TensorDataset(torch.arange(8.0))


class Numbers(IterableDataset):
    def __iter__(self):
        return iter(range(8))


class Counting(Dataset):
    """A data set that counts what was loaded."""

    num_loaded = 0

    def __len__(self):
        return 8

    def __getitem__(self, index):
        self.num_loaded += 1
        return torch.tensor(float(index))


class Alike(DataLoader):
    """A loader that is equal to another, so that it has no hash."""

    def __eq__(self, other):
        return True


def mean_of(samples):
    return torch.stack([x for (x,) in samples]).mean()


@pytest.fixture
def told():
    return []


@pytest.fixture
def make(told):
    def make(*, shared=True, together=1, checks=None):
        return LoaderPlans(
            together=together,
            share=BatchSharding(rank=0, world_size=2).local_shard,
            agree=(lambda value: [value, value]) if shared else None,
            whole_draws=True,
            checks=checks,
            on_unknown=told.append,
        )

    return make


@pytest.mark.parametrize(
    ("loader", "shared", "alone"),
    [
        (DataLoader(ROWS, batch_size=4), Division.OWN_SAMPLES, Division.OWN_SAMPLES),
        (DataLoader(ROWS, batch_size=4, collate_fn=mean_of), Division.OWN_SAMPLES, Division.OWN_SAMPLES),
        (DataLoader(Counting(), batch_size=4), Division.CUT, Division.OWN_SAMPLES),
        (DataLoader(Numbers(), batch_size=4), Division.CUT, Division.CUT),
        (DataLoader(Numbers(), batch_size=4, num_workers=2), Division.OWN_WORKERS, Division.CUT),
        (DataLoader(Numbers(), batch_size=4, collate_fn=sum), Division.FULL, Division.CUT),
    ],
    ids=["rows", "collated", "counting", "iterable", "iterable with workers", "iterable and collated"],
)
def test_divide_says_how_batches_of_each_kind_are_loaded(make, loader, shared, alone, told):
    plans = make()
    assert plans.divide(plans.of(loader), loader) is shared
    assert told == (["structure of its own"] if shared is Division.FULL else [])
    assert plans.divide(plans.of(loader), loader) is shared
    assert len(told) <= 1, "said once"
    plans = make(shared=False)
    assert plans.divide(plans.of(loader), loader) is alone


def test_divide_follows_what_was_learned_of_the_first_batch(make):
    plans, loader = make(), DataLoader(ROWS, batch_size=4)
    plan = plans.of(loader)
    plan.draws = True
    assert plans.divide(plan, loader) is Division.CUT
    plan.is_full = True
    assert plans.divide(plan, loader) is Division.FULL


def test_divide_asks_the_checks(make):
    class Checks:
        def needs_whole(self, asked):
            return asked is loader

    loader = DataLoader(ROWS, batch_size=4)
    plans = make(checks=Checks())
    assert plans.divide(plans.of(loader), loader) is Division.CUT
    assert plans.of(loader).draws


def test_a_plan_is_begun_anew_with_another_collate_function_unless_workers_live_on(make):
    plans, loader = make(), DataLoader(ROWS, batch_size=4)
    living = DataLoader(ROWS, batch_size=4, num_workers=1, persistent_workers=True)
    before = plans.of(loader), plans.of(living)
    assert (plans.of(loader), plans.of(living)) == before
    loader.collate_fn = living.collate_fn = mean_of
    assert plans.of(loader) is not before[0]
    assert plans.of(living) is before[1]


def test_a_plan_is_of_one_loader_and_goes_with_it(make):
    plans, loader, other = make(), Alike(ROWS, batch_size=4), Alike(ROWS, batch_size=4)
    plan = plans.of(loader)
    assert plans.of(other) is not plan
    reference = weakref.ref(loader)
    del loader
    gc.collect()
    assert reference() is None


def test_joined_batches_are_made_once(make):
    plans, loader = make(together=2), DataLoader(ROWS, batch_size=2)
    plan = plans.of(loader)
    joined = plans.with_joined_batches(plan, loader)
    assert [len(x) for (x,) in joined] == [4, 4]
    assert plans.with_joined_batches(plan, loader) is joined
    alone = make()
    assert alone.with_joined_batches(alone.of(loader), loader) is loader
