"""How many bytes of gradients PyTorch's reducer sends at a time."""

from __future__ import annotations

import torch

from jupyter_dtrain.engine.backward.gradient_reducers import bucket_cap

MIB = 1 << 20


def leaves(num_bytes: int, device: str = "cpu") -> list[torch.Tensor]:
    return [torch.empty(num_bytes // 4, device=device)]


def test_a_model_on_cpus_is_sent_in_several_buckets():
    assert bucket_cap(leaves(64 * MIB), 2) == 4.0


def test_a_bucket_is_no_larger_than_pytorchs():
    assert bucket_cap(leaves(500 * MIB), 2) == 25.0


def test_each_rank_of_many_has_a_part_of_a_bucket_worth_sending():
    assert bucket_cap(leaves(4 * MIB), 64) == 4.0


def test_other_devices_have_what_pytorch_likes():
    assert bucket_cap(leaves(64 * MIB, "meta"), 2) is None
