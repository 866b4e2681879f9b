"""What cached functions of the notebook remember is on the engines, and what they remember there comes home."""

import pytest

DATA = """
import functools, threading, zlib
class Data:
    def __init__(self): self.loads = 0
    @functools.lru_cache(None)
    def read(self, i): self.loads += 1; return [i]
    @functools.cached_property
    def mean(self): return sum(self.read(i)[0] for i in range(3)) / 3
data = Data(); mean = data.mean
"""
USE = "for i in range(4): data.read(i)\nhits = Data.read.cache_info().hits"
KINDS = {
    "a cached property": "",
    "a lock": "data.lock = threading.Lock()\n",
    "a file": "data.log = open('log', 'w')\n",
    "a generator of random numbers": "import numpy as np; data.rng = np.random.default_rng(0)\n",
    "an iterator that is at its third": "data.it = iter([1, 2, 3, 4]); next(data.it); next(data.it)\n",
    "an own way to be pickled": "class P:\n    def __reduce__(self): raise TypeError\nP.__reduce__ = lambda self: (P, ())\ndata.p = P()\n",
    "a weak reference": "import weakref; data.ref = weakref.ref(data)\n",
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_is_sent_whatever_can_be_sent_is_in_it(kind, notebook, other_notebook):
    for here in (notebook, other_notebook):
        here.plain(DATA + KINDS[kind])
    other_notebook.plain(USE)
    notebook.distribute(USE)
    probe = "data.loads, hits, Data.read.cache_info().currsize, data.read(2), data.loads"
    assert notebook.plain(probe) == other_notebook.plain(probe)
    assert notebook.names["data"].loads == 4
    assert notebook.sent.lines == []
    assert notebook.not_returned == {}


@pytest.mark.parametrize("key", ["@dataclass(frozen=True)\nclass K:\n    n: int", "class K(NamedTuple): n: int"])
def test_a_call_by_a_key_that_is_compared_is_found_again(key, notebook):
    notebook.plain(f"""
import functools, threading
from dataclasses import dataclass
from typing import NamedTuple
{key}
class Data:
    lock = threading.Lock()
    @functools.lru_cache(5)
    def read(self, key, *, times=1): return key.n * times
data = Data(); data.read(K(2), times=3)""")
    notebook.distribute("data.read(K(2), times=3); data.read(K(4))")
    assert notebook.names["Data"].read.cache_info()[:2] == (1, 2)


def test_a_cache_that_cannot_be_sent_is_spoken_of(notebook):
    notebook.plain(DATA + "@functools.cache\ndef packer(): return zlib.compressobj()\npacker()")
    notebook.distribute("data.read(2); packer")
    assert notebook.sent.lines == ["The cache of `packer` is empty on the engines, because a Compress in it cannot be sent."]
    assert notebook.names["Data"].read.cache_info()[:2] == (1, 3)  # the other one was sent
    notebook.distribute("packer, 1")
    assert len(notebook.sent.lines) == 1  # said for each cell
    assert notebook.names["packer"].cache_info().currsize == 1
    notebook.plain("packer.cache_clear()")
    notebook.distribute("packer, 1")
    assert notebook.sent.lines == []


def test_a_cache_that_cannot_come_home_is_spoken_of(notebook):
    notebook.plain("import functools, zlib\n@functools.cache\ndef old(): return zlib.compressobj()\nclass A: known = old\ndel old")
    notebook.distribute("A.known\n@functools.cache\ndef packer(): return zlib.compressobj()\npacker(); n = 1")
    assert notebook.not_returned == {"packer.cache": "a Compress in it cannot be sent"}
    assert notebook.names["packer"].cache_info().currsize == 0
    assert notebook.names["n"] == 1
    notebook.distribute("A.known()")
    assert notebook.not_returned.keys() == {"old.cache"}
