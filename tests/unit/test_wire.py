"""A packed graph on its way: small buffers inside the message, large ones beside it."""

from __future__ import annotations

import os
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from jupyter_dtrain.serialization.pickler import Packed, Packer
from jupyter_dtrain.serialization.unpickler import Unpacker
from jupyter_dtrain.transport.blob_store import SMALLEST, BlobFolder
from jupyter_dtrain.transport.parcel import Parcel, from_parcel, to_parcel


@pytest.fixture
def blobs(tmp_path):
    return BlobFolder(tmp_path / "blobs")


def packed(value: object) -> Packed:
    packer = Packer(namespace={})
    packer.dump(value)
    return packer.packed()


def unpacked(packed: Packed) -> Any:
    return Unpacker(packed, namespace={}).load()


def test_large_buffers_travel_beside_the_message(blobs):
    value = {
        "small": torch.arange(10),
        "large": torch.arange(SMALLEST),
        "array": np.arange(SMALLEST, dtype=np.uint8),
        "empty": torch.zeros(0),
    }
    parcel = to_parcel(packed(value), blobs)
    assert [type(part) for part in parcel.parts] == [bytes, str, str, bytes]
    assert parcel.keys == parcel.parts[1:3]
    assert {path.name for path in blobs.path.iterdir()} == set(parcel.keys)
    sent = pickle.dumps(parcel, protocol=pickle.HIGHEST_PROTOCOL)
    assert parcel.num_bytes == len(parcel.stream) + 80
    assert len(sent) < parcel.num_bytes + 2000
    back = unpacked(from_parcel(pickle.loads(sent), blobs))
    assert all(torch.equal(torch.as_tensor(back[name]), torch.as_tensor(value[name])) for name in value)


@pytest.mark.parametrize("length", [0, 1, SMALLEST - 1, SMALLEST, SMALLEST + 1])
def test_every_length_arrives_and_can_be_written_to(blobs, length):
    value: list[Any] = [np.arange(length, dtype=np.uint8), torch.arange(length, dtype=torch.uint8)]
    parcel = to_parcel(packed(value), blobs)
    first, second = (unpacked(from_parcel(parcel, blobs)) for _ in range(2))
    for mine, others, sent in zip(first, second, value, strict=True):
        assert mine.tolist() == others.tolist() == sent.tolist()
        mine += 1
        assert others.tolist() == sent.tolist(), "a reader of its own"


def test_the_same_again_writes_nothing(blobs):
    data = torch.zeros(SMALLEST)
    first = to_parcel(packed({"x": data, "lr": 0.1}), blobs)
    stamps = {entry.name: entry.stat().st_ino for entry in os.scandir(blobs.path)}
    second = to_parcel(packed({"x": data.clone(), "lr": 0.2}), blobs)
    assert first.keys == second.keys
    assert {entry.name: entry.stat().st_ino for entry in os.scandir(blobs.path)} == stamps


def test_a_parcel_whose_blob_is_gone(blobs):
    parcel = to_parcel(packed(torch.zeros(SMALLEST)), blobs)
    blobs.discard(parcel.keys)
    with pytest.raises(FileNotFoundError):
        from_parcel(parcel, blobs)


def test_no_buffers_at_all(blobs):
    parcel = to_parcel(packed({"a": [1, "x"]}), blobs)
    assert parcel == Parcel(parcel.stream, [], [])
    assert unpacked(from_parcel(parcel, blobs)) == {"a": [1, "x"]}
