"""Iterable data that keep where they are, ended at any batch and gone on with elsewhere: no row is lost, none comes twice."""

from __future__ import annotations

import itertools
import pickle
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from jupyter_dtrain.engine.data.followed_stream import fingerprint
from jupyter_dtrain.engine.resume.loops import Loops
from jupyter_dtrain.integrations.base import RunScope
from jupyter_dtrain.integrations.litdata import INTEGRATION
from tests.conftest import in_turn, one_of
from tests.engine.ranks import RankError
from tests.engine.test_resumed_loaders import EPOCHS, MODEL, SETUP, check, training
from tests.unit.resuming import Snapshot, plain, resumed, watched

STREAMS = """
class Reader:
    def __init__(self): self.row = 0
class InADict(IterableDataset):
    def __init__(self): self.at = {"row": 0}
    def __iter__(self):
        while self.at["row"] < 7:
            self.at["row"] += 1
            yield torch.tensor([float(self.at["row"])])
        self.at["row"] = 0
    def state_dict(self): return dict(self.at)
    def load_state_dict(self, state): self.at = dict(state)
class InAReader(IterableDataset):
    def __init__(self): self.reader = Reader()
    def __iter__(self):
        while self.reader.row < 7:
            self.reader.row += 1
            yield torch.tensor([float(self.reader.row)])
        self.reader.row = 0
class InATensor(IterableDataset):
    def __init__(self): self.row = torch.zeros((), dtype=torch.int64)
    def __iter__(self):
        while self.row < 7:
            self.row += 1
            yield self.row.reshape(1).double()
        self.row.zero_()
class InAnIterator(IterableDataset):
    def __init__(self): self.rows = iter(list(range(30)))
    def __iter__(self):
        for _ in range(7): yield torch.tensor([float(next(self.rows))])
class Shuffled(IterableDataset):
    def __init__(self): self.files, self.rng = list(range(7)), random.Random(3)
    def __iter__(self):
        self.rng.shuffle(self.files)
        for file in self.files: yield torch.tensor([float(file)])
class Packed(IterableDataset):
    # tokens of texts in rows of three; what is left over begins the next epoch
    def __init__(self): self.tokens = []
    def __iter__(self):
        for text in range(7):
            self.tokens.extend([text, text * 10])
            while len(self.tokens) >= 3:
                row, self.tokens = self.tokens[:3], self.tokens[3:]
                yield torch.tensor(row, dtype=torch.float64)
class Around(IterableDataset):
    def __init__(self, data): self.data = data
    def __iter__(self):
        for x in self.data: yield x * 2
from torchdata.stateful_dataloader import StatefulDataLoader
"""
KINDS = ["InADict()", "InAReader()", "InATensor()", "InAnIterator()", "Shuffled()", "Packed()", "Around(InADict())"]
FORMS = ["DataLoader({}, batch_size=2)", "StatefulDataLoader({}, batch_size=2)"]
LOOP = "for e in range(2):\n    for x in loader: show(x)"


@pytest.mark.parametrize("step", one_of(2, [3, 1]))
@pytest.mark.parametrize(("kind", "form"), in_turn(KINDS, FORMS))
def test_streams_that_keep_where_they_are(kind, form, step):
    check(f"{SETUP}{STREAMS}loader = {form.format(kind)}\n", LOOP, step)


ELSEWHERE = {
    "stream": "DataLoader(InADict(), batch_size=3)",
    "shuffled": "DataLoader(Data(7), batch_size=3, shuffle=True)",
    "Parquet": 'parquet("rows", features=["row"]).loader(batch_size=3)',
    "StatefulDataLoader": "StatefulDataLoader(Data(7), batch_size=3, shuffle=True)",
}


@pytest.mark.parametrize("loader", one_of(2, ELSEWHERE), ids=str)
@pytest.mark.parametrize("sizes", one_of(4, [(4, 2, 4), (4, 4), (2, 4), (1, 3, 2, 4)]), ids=lambda sizes: " to ".join(map(str, sizes)))
def test_goes_on_on_other_numbers_of_ranks(loader, sizes, ranks, tmp_path):
    """As torchtitan#816, where fewer ranks lost rows and more of them failed, and KempnerForge#57: several resumes in one epoch."""
    pq.write_table(pa.table({"row": np.arange(7.0)}), tmp_path / "rows.parquet", row_group_size=2)
    setup = f"{SETUP}{STREAMS}{MODEL}from jupyter_dtrain.data import parquet\nloader = {ELSEWHERE[loader].replace('rows', str(tmp_path))}\n"
    expected = plain(setup, EPOCHS).namespace["trace"]
    assert [len(x) for x, *_ in expected] == [3, 3, 1] * 2
    snapshot = ranks.call(sizes[0], killed_on_a_rank, setup, EPOCHS, 2)[0]
    for size in sizes[1:-1]:
        snapshot = ranks.call(size, resumed_on_a_rank, setup, EPOCHS, snapshot, 0)[0]
    for trace in ranks.call(sizes[-1], resumed_on_a_rank, setup, EPOCHS, snapshot, None):
        assert trace == expected


def around_rank(run: Any) -> Any:
    def around(loops: Loops, namespace: dict[str, Any]) -> AbstractContextManager[Any]:
        return training(loops, namespace, run.rank, run.world_size)

    return around


def scope_of(run: Any) -> AbstractContextManager[None]:
    """Return what litData's integration has around a cell; here around what the notebook has made too, where there is no group."""
    return INTEGRATION.run_scope(RunScope(rank=run.rank, source="", is_jumping=bool, goes_on=bool, talk=run, users_line=bool))


def killed_on_a_rank(run: Any, setup: str, program: str, index: int) -> bytes:
    with scope_of(run):
        killed = watched(setup, program, index, around_rank(run))
    assert killed.snapshot is not None
    return to_bytes(killed.snapshot)


def resumed_on_a_rank(run: Any, setup: str, program: str, snapshot: bytes, index: int | None) -> Any:
    with scope_of(run):
        again = resumed(setup, program, from_bytes(snapshot), around_rank(run), kill_at=index)
    return again.namespace["trace"] if index is None else to_bytes(again.snapshot)


def to_bytes(snapshot: Snapshot | None) -> bytes:
    assert snapshot is not None
    packed = replace(snapshot.packed, buffers=[bytes(buffer) for buffer in snapshot.packed.buffers])
    return pickle.dumps(replace(snapshot, packed=packed))


def from_bytes(content: bytes) -> Snapshot:
    snapshot: Snapshot = pickle.loads(content)
    snapshot.packed.buffers = [memoryview(bytearray(buffer)) for buffer in snapshot.packed.buffers]
    return snapshot


def test_stream_that_divides_itself_is_refused(ranks):
    setup = f"""{SETUP}{MODEL}
class Divided(IterableDataset):
    def __iter__(self):
        rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        return iter(torch.arange(8.0)[rank::size, None])
loader = DataLoader(Divided(), batch_size=2)
"""
    with pytest.raises(RankError, match=r"different rows, .* \(Divided\) shards itself by rank"):
        ranks.call(2, killed_on_a_rank, setup, EPOCHS, 3)


def test_rows_that_come_otherwise_when_they_are_read_again_are_told_of(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    setup = f"""{SETUP}
from pathlib import Path
class Queue(IterableDataset):
    # gives each message once
    def __iter__(self):
        for _ in range(7):
            with Path("taken").open("ab") as file: file.write(b".")
            yield torch.tensor([float(Path("taken").stat().st_size)])
loader = DataLoader(Queue(), batch_size=2)
"""
    killed = watched(setup, LOOP, 3, training)
    assert killed.snapshot is not None
    said: list[str] = []
    resumed(setup, LOOP, killed.snapshot, lambda loops, namespace: training(loops, namespace, say=said.append))
    assert len(said) == 1
    assert "gave different rows when its first 2 batches were read again" in said[0]


@pytest.mark.parametrize("other", [torch.arange(1, 301), torch.arange(300.0), torch.arange(300).reshape(3, 100), {"a": torch.arange(300)}])
def test_fingerprints_of_batches_differ(other):
    batch = torch.arange(300)
    assert fingerprint(batch) == fingerprint(batch.clone())
    assert fingerprint(batch) != fingerprint([other, "text"])
    assert fingerprint(["a", 1, np.arange(3)]) != fingerprint(["a", 1, np.arange(1, 4)])
    assert fingerprint(torch.zeros(0)) and fingerprint(torch.tensor(1.0).bfloat16())


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(3, dtype=torch.complex64).conj(),
        torch.ones(3, dtype=torch.complex64).conj().imag,
        torch.ones(4).to(torch.float8_e4m3fn),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        torch.ones(2).expand(3, 2),
        torch.empty(3, device="meta"),
    ],
    ids=["conjugate", "negative", "float8", "nested", "expanded", "meta"],
)
def test_any_tensor_of_a_batch_may_be_looked_at(tensor):
    assert fingerprint([tensor, 1]) != fingerprint([tensor, 2])


HF = """
import datasets
datasets.disable_progress_bars()
def files(): return datasets.Dataset.from_dict({"i": range(21), "x": range(21)}).to_iterable_dataset(num_shards=3)
read = []
def noted(row):
    read.append(row["i"])
    return row
def show(*batches): trace.append([batch["i"].tolist() for batch in batches] + [random.random(), torch.rand(1).item()])
"""
IN_ORDER = {
    "rows": "files()",
    "tensors": 'files().with_format("torch")',
    "mapped": 'files().map(lambda row: {"i": row["i"] * 2}).with_format("torch")',
    "drawn": 'files().map(lambda row: {"i": row["i"] + torch.rand(1).item()})',
    "filtered": 'files().filter(lambda row: row["i"] % 3 > 0).select_columns(["i"])',
    "a part": "files().skip(3).take(13)",
    "of Parquet": 'datasets.load_dataset("parquet", data_files="rows/*.parquet", split="train", streaming=True)',
}
READ_AGAIN = {
    "shuffled": "files().shuffle(seed=3, buffer_size=5)",
    "mapped by batches": 'files().map(lambda rows: {"i": [2 * i for i in rows["i"]]}, batched=True, batch_size=4).with_format("torch")',
    "two sources": "datasets.interleave_datasets([files(), files().skip(4)])",
}


@pytest.fixture
def rows(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    (tmp_path / "rows").mkdir()
    for part in range(3):
        pq.write_table(pa.table({"i": np.arange(7) + 7 * part, "x": np.zeros(7)}), f"rows/{part}.parquet", row_group_size=3)


@pytest.mark.parametrize("stream", IN_ORDER.values(), ids=IN_ORDER)
def test_stream_of_datasets_in_order(rows, stream):
    loop = "for e in range(2):\n    loader.dataset.set_epoch(e // 2)\n    for x in loader: show(x)"
    check(f"{SETUP}{HF}loader = DataLoader({stream}, batch_size=4)\n", loop, step=3)


TOGETHER = "for x, y in zip(loader, loader): show(x, y)"
# Two iterations at once over sources that take turns come to other rows each time in the library itself.
AGAIN = [(stream, loop) for stream in READ_AGAIN.values() for loop in (LOOP, TOGETHER) if loop is LOOP or "interleave" not in stream]


@pytest.mark.parametrize(("stream", "loop"), AGAIN)
def test_stream_of_datasets_whose_place_is_not_in_its_state(rows, stream, loop):
    check(f"{SETUP}{HF}loader = DataLoader({stream}, batch_size=4)\n", loop, step=6)


def test_two_iterations_over_one_stream_of_datasets(rows):
    check(f"{SETUP}{HF}loader = DataLoader(files(), batch_size=4)\n", "for x, y in zip(loader, loader): show(x, y)", step=3)


def test_nothing_is_read_again_of_a_stream_in_order(rows):
    setup = f"{SETUP}{HF}loader = DataLoader(files().map(noted), batch_size=4)\n"
    killed = watched(setup, LOOP, 4, training)
    assert killed.snapshot is not None
    before = len(killed.namespace["read"])
    again = resumed(setup, LOOP, killed.snapshot, training)
    assert before == 12
    assert len(again.namespace["read"]) <= 2 * 21 + 1
    assert sorted(again.namespace["read"][:21]) == list(range(21))


FORKED = ", num_workers=2, multiprocessing_context='fork'"  # as on engines; ranks of tests are of a fork server and would wait for another
LIT = """
from litdata import StreamingDataset, StreamingDataLoader
model = torch.nn.Linear(1, 1)
used = []
def step(batch):
    model(batch["i"].float()[:, None]).mean().backward()
    used.append(batch["i"].tolist())
"""


def lit_row(i: int) -> dict[str, int]:
    return {"i": i}


def on_a_rank_with_litdata(run: Any, setup: str, program: str) -> Any:
    with scope_of(run):
        return watched(setup, program, around=around_rank(run)).namespace["used"]


def test_each_rank_reads_all_of_a_stream_of_litdata(ranks, tmp_path):
    litdata = pytest.importorskip("litdata")
    litdata.optimize(fn=lit_row, inputs=list(range(20)), output_dir=str(tmp_path / "rows"), chunk_size=5, num_workers=1)
    for loader, workers in itertools.product(("StreamingDataLoader", "DataLoader"), (0, 2)):
        options = "batch_size=4" + (FORKED if workers else "")
        setup = f"{SETUP}{LIT}loader = {loader}(StreamingDataset({str(tmp_path / 'rows')!r}, shuffle={workers > 0}), {options})\n"
        program = "for batch in loader: step(batch)"
        expected = plain(setup, program).namespace["used"]
        assert sorted(row for batch in expected for row in batch) == list(range(20))
        for number in (2, 3):
            for used in ranks.call(number, on_a_rank_with_litdata, setup, program):
                assert used == expected


@pytest.fixture
def lit_rows(tmp_path, monkeypatch):
    """A folder of 23 rows in chunks of five."""
    litdata = pytest.importorskip("litdata")
    monkeypatch.setenv("DATA_OPTIMIZER_CACHE_FOLDER", str(tmp_path / "cache"))
    litdata.optimize(fn=lit_row, inputs=list(range(23)), output_dir=str(tmp_path / "rows"), chunk_size=5, num_workers=1)
    return f"""{SETUP}
from litdata import StreamingDataset, StreamingDataLoader
def show(batch): trace.append([batch["i"].tolist(), random.random(), torch.rand(1).item()])
folder = {str(tmp_path / "rows")!r}
"""


@pytest.mark.parametrize(("loader", "shuffle"), in_turn(["DataLoader", "StreamingDataLoader"], [True, False], share=2))
def test_stream_of_litdata(lit_rows, loader, shuffle):
    check(f"{lit_rows}loader = {loader}(StreamingDataset(folder, shuffle={shuffle}), batch_size=4)\n", LOOP, step=3)


@pytest.mark.parametrize(
    ("loader", "workers"), [("DataLoader", 0), ("StreamingDataLoader", 0), ("DataLoader", 2), ("StreamingDataLoader", 2)]
)
def test_stream_of_litdata_goes_on_on_other_numbers_of_ranks(lit_rows, loader, workers, ranks):
    rows = f"{loader}(StreamingDataset(folder, shuffle=True), batch_size=4{FORKED if workers else ''})"
    program = 'for e in range(2):\n    for x in loader: step(x["i"][:, None] / 32)'
    setup = f"{lit_rows}{MODEL}loader = {rows}\n"
    expected = plain(setup, program).namespace["trace"]
    per_epoch = len(expected) // 2
    assert sorted(32 * row for x, *_ in expected[:per_epoch] for row in x) == list(range(23))
    first = ranks.call(2, killed_on_a_rank, setup, program, 3)[0]
    second = ranks.call(1, resumed_on_a_rank, setup, program, first, 1)[0]
    for trace in ranks.call(2, resumed_on_a_rank, setup, program, second, None):
        assert trace == expected
