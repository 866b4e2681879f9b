"""Dask on another host than the notebook's: a cluster that listens to its own host alone is named where something is to be computed."""

from __future__ import annotations

import dask.bag as db
import pytest

from jupyter_dtrain import data
from jupyter_dtrain.errors import DataError, UsageError
from jupyter_dtrain.integrations import dask as integration
from jupyter_dtrain.protocol import HOST_VARIABLE

LOOPBACK = ["tcp://127.0.0.1:8786", "tls://[::1]:8786", "tcp://localhost:8786"]


@pytest.mark.parametrize("address", LOOPBACK)
def test_a_cluster_on_loopback_is_refused_on_another_host(address, monkeypatch):
    bag = db.from_sequence(range(6), npartitions=2)
    rows = data.from_dask(bag, lengths=[3, 3])
    assert bag.count().compute(scheduler="synchronous") == 6
    monkeypatch.setenv(HOST_VARIABLE, "b")
    way = (address, b"", "client")
    with pytest.raises(UsageError, match="reached from the notebook's host alone"):
        integration._connected(*way)
    integration.join_cluster(way)
    try:
        with pytest.raises(
            DataError, match=r"Partition 0 of a Dask Bag cannot be read: UsageError: Dask's scheduler is at t\w+://.*LocalCluster\(host="
        ):
            rows[0]
    finally:
        integration.join_cluster(None)
    assert rows[4] == 4


@pytest.mark.parametrize("address", ["tcp://10.0.0.7:8786", "ucx://node-3:1", "tls://[fe80::1]:8786"])
def test_others_are_connected_to(address, monkeypatch):
    monkeypatch.setenv(HOST_VARIABLE, "b")
    assert integration._why_out_of_reach(address) is None


@pytest.mark.parametrize("address", LOOPBACK)
def test_on_the_notebooks_own_host_it_is_reached(address, monkeypatch):
    monkeypatch.delenv(HOST_VARIABLE, raising=False)
    assert integration._why_out_of_reach(address) is None
