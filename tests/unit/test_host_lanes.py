"""How hosts are divided between trials that run beside each other."""

from __future__ import annotations

import pytest

from jupyter_dtrain.cluster.hosts.ssh_launcher import SshLauncher
from jupyter_dtrain.cluster_options import ClusterOptions, HostSpec
from jupyter_dtrain.errors import UsageError


def lanes(hosts, engines, at_most=9):
    options = ClusterOptions(hosts=tuple(HostSpec(name=name, num_engines=number) for name, number in hosts.items()))
    found = SshLauncher().lanes(options, engines_per_lane=engines, at_most=at_most)
    assert len({(lane.hosts, lane.part) for lane in found}) == len(found)
    return [({host.name: host.num_engines for host in lane.hosts}, lane.part) for lane in found]


@pytest.mark.parametrize(
    ("hosts", "engines", "expected"),
    [
        ({"a": 2, "b": 1}, 1, [({"a": 1}, (0, 2)), ({"a": 1}, (1, 2)), ({"b": 1}, (0, 1))]),
        ({"a": 4, "b": 4}, 2, [({"a": 2}, (0, 2)), ({"a": 2}, (1, 2)), ({"b": 2}, (0, 2)), ({"b": 2}, (1, 2))]),
        ({"a": 3, "b": 3}, 2, [({"a": 2}, (0, 2)), ({"a": 1, "b": 1}, (1, 2)), ({"b": 2}, (1, 2))]),
        ({"a": 2, "b": 2}, 3, [({"a": 2, "b": 1}, (0, 1))]),
    ],
)
def test_trials_have_engines_that_are_neighbours_and_equal_parts_of_a_host(hosts, engines, expected):
    assert lanes(hosts, engines) == expected


def test_there_are_no_more_of_them_than_trials():
    assert lanes({"a": 4}, 1, at_most=2) == [({"a": 1}, (0, 2)), ({"a": 1}, (1, 2))]


@pytest.mark.parametrize(
    ("hosts", "engines", "message"), [({"a": 2}, 3, "exceeds the number of engines, 2"), ({"a": None}, 1, "say how many engines")]
)
def test_what_cannot_be_had_is_refused(hosts, engines, message):
    with pytest.raises(UsageError, match=message):
        lanes(hosts, engines)
