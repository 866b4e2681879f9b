"""A notebook and, in a process of its own, an engine that runs cells: capture and return with no kernel and no cluster."""

from __future__ import annotations

import ast
import contextlib
import multiprocessing
import sys
import textwrap
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from jupyter_dtrain.analysis.names import find_names
from jupyter_dtrain.capture.bundle import Bundle, pack, unpack
from jupyter_dtrain.capture.library_patches import in_place
from jupyter_dtrain.capture.process_state import ProcessSettings
from jupyter_dtrain.capture.random_state import RandomState
from jupyter_dtrain.engine.arrival.modules import LocalModules, found_by_name
from jupyter_dtrain.engine.arrival.objects import DeviceNames, bind
from jupyter_dtrain.engine.cell import run_cell
from jupyter_dtrain.engine.cell_results import CellResults
from jupyter_dtrain.engine.task import Outcome
from jupyter_dtrain.notebook.results import apply_outcome
from jupyter_dtrain.serialization.library_firsts import firsts_noted
from jupyter_dtrain.serialization.library_placing import objects_left_as_they_were
from jupyter_dtrain.serialization.library_state import left_as_it_was
from jupyter_dtrain.serialization.pickler import Packed
from jupyter_dtrain.serialization.unpickler import Unpacker
from jupyter_dtrain.transport.blob_store import BlobFolder
from jupyter_dtrain.transport.parcel import Parcel, from_parcel, to_parcel

LIMIT = 120.0  # seconds for one cell, of which the first imports torch


class CellFailed(AssertionError):
    """The cell raised on the other side."""


class Engine:
    """The other process. Lives for many cells, as engines do."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._end, other = context.Pipe()
        self._process = context.Process(target=serve, args=(other,))
        self._process.start()
        other.close()

    def call(self, *request: Any) -> Any:
        self._end.send(request)
        if not self._end.poll(LIMIT):
            self._process.kill()  # its answer is none to the next call
            self._start()
            raise AssertionError("the engine does not answer")
        ok, result = self._end.recv()
        if not ok:
            raise CellFailed(result)
        return result

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._end.send(None)
        self._process.join(LIMIT)
        if self._process.is_alive():
            self._process.kill()


def serve(end: Connection) -> None:
    """Run cells until there is nobody who sends any."""
    sys.stdout = sys.stderr
    while True:
        try:
            request = end.recv()
        except EOFError:
            return
        if request is None:
            return
        try:
            end.send((True, run(*request)))
        except BaseException as error:
            end.send((False, "".join(traceback.format_exception(error))))


_modules = LocalModules()


def run(
    source: str,
    parcel: Parcel,
    names: tuple[frozenset[str], frozenset[str]],
    random_state: RandomState,
    surroundings: ProcessSettings,
    folder: Path,
) -> tuple[Parcel, dict[str, str], RandomState]:
    """Do what an engine does with a task, without a process group."""
    unsent, imported = names
    surroundings.set()
    _modules.refresh(Path.cwd())
    blobs = BlobFolder(folder)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with objects_left_as_they_were(), firsts_noted([source]), left_as_it_was() as clean_up:
        values, tracked = unpack(Unpacker(from_parcel(parcel, blobs), namespace=namespace, device_for=lambda _: torch.device("cpu")))
        bind(namespace, values, unsent=unsent)
        devices = DeviceNames(namespace, tracked, torch.device("cpu"))
        home = CellResults(namespace, tracked, at_home=imported)
        random_state.set()
        with in_place(tracked), found_by_name(tracked, namespace), devices.in_place():
            value = run_cell(source, "<cell>", namespace)
        _modules.note()
        packed, not_returned = home.pack(value)
        clean_up(home.objects())
    return to_parcel(packed, blobs), not_returned, RandomState.now()


class Notebook:
    """The names of a notebook, its plain cells, and its cells that run on the engine."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine = engine
        self.folder = folder
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.not_returned: dict[str, str] = {}
        self.sent: Bundle | None = None
        self.returned: Packed | None = None

    def plain(self, source: str) -> Any:
        """Run a cell here."""
        return run_cell(textwrap.dedent(source), "<plain>", self.names)

    def distribute(self, source: str) -> Any:
        """Run a cell on the engine; return the value of its last line."""
        source = textwrap.dedent(source)
        self.sent = pack(find_names(ast.parse(source)), self.names)
        blobs = BlobFolder(self.folder)
        parcel = to_parcel(self.sent.packed, blobs)
        moment = RandomState.now(), ProcessSettings.now(), self.folder
        back, self.not_returned, random_state = self.engine.call(source, parcel, (self.sent.unsent, self.sent.imported), *moment)
        self.returned = from_parcel(back, blobs)
        outcome = Outcome(rank=0, failure=None, stopped=False, steps=0, random_state=random_state)
        value, self.unread = apply_outcome(outcome, self.returned, self.sent.tracked, self.names)
        return value

    def num_returned_bytes(self) -> int:
        """Return how much the last cell sent back, but for the pickle itself."""
        assert self.returned is not None
        return sum(buffer.nbytes for buffer in self.returned.buffers)
