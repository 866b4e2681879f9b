"""Running a cell again: large values that did not change are not sent again."""

from __future__ import annotations

import pytest

from tests.notebook.kernel import SESSION

MEGABYTE = 1 << 20


@pytest.fixture
def parcels(notebook):
    """Return a function that runs a cell and returns the bytes of its message and the files that it added to the blob folder, by size."""
    notebook.run("import jupyter_dtrain.elastic.job as watched\nto_parcel, parcels = watched.to_parcel, []")
    notebook.run("def noting(*args):\n    parcels.append(to_parcel(*args))\n    return parcels[-1]\nwatched.to_parcel = noting")
    blobs = f"{{path.name: (path.stat().st_mtime_ns, path.stat().st_size) for path in {SESSION}.get().cluster.blob_dir.iterdir()}}"

    def run(code):
        before = notebook.value(blobs)
        notebook.run(code)
        after = notebook.value(blobs)
        written = [size for name, (_, size) in sorted(after.items()) if name not in before]
        return notebook.value("parcels[-1].num_bytes"), sorted(written)

    yield run
    notebook.end_running()
    notebook.run("watched.to_parcel = to_parcel")


CELL = """%%distribute --engines 2
mean = data.mean().item()
optimizer.zero_grad()
model(torch.ones(1, 2)).square().mean().backward()
optimizer.step()
"""


def test_what_did_not_change_is_not_sent_again(notebook, parcels):
    notebook.run("torch.manual_seed(5)\ndata = torch.randn(2**18)")  # two megabytes
    notebook.run("model = nn.Linear(2, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)")
    sent, written = parcels(CELL)
    assert written == [2 * MEGABYTE]
    assert sent < 20_000
    sent, written = parcels(CELL)
    assert written == []
    assert sent < 20_000
    notebook.run("kept = data[3].item()\ndata[3] += 1")
    assert parcels(CELL)[1] == [2 * MEGABYTE]
    assert notebook.value("mean - data.mean().item()") == pytest.approx(0, abs=1e-12)
    notebook.run("data[3] = kept")
    assert parcels(CELL)[1] == []  # the first version is still there


def test_two_names_of_the_same_numbers_are_sent_once(notebook, parcels):
    notebook.run("a = torch.arange(2.0**17)\nb, part, same, d = a.numpy(), a[5:9], a, {'a': a.clone()}")
    _, written = parcels("%%distribute --engines 2\ntotal = (a.sum() + b.sum() + part.sum() + d['a'].sum()).item()\nshared = same is a")
    assert written == [MEGABYTE]
    assert notebook.value("(total == 3 * a.sum().item() + 26.0, shared)") == (True, True)


def test_a_part_of_a_tensor_that_is_changed_on_the_engines_changes_the_whole(notebook):
    notebook.run("whole = torch.zeros(4)\npart = whole[1:3]\narray = whole.numpy()")
    notebook.run("%%distribute --engines 2\npart += 5\nwhole[0] = 1")
    assert notebook.value("whole.tolist(), part.tolist(), array.tolist()") == ([1, 5, 5, 0], [5, 5], [1, 5, 5, 0])


def test_an_array_that_shares_memory_with_a_tensor(notebook):
    notebook.run("whole = torch.zeros(4)\narray = whole.numpy()")
    notebook.run("%%distribute --engines 2\narray[3] = 7\nseen = whole[3].item()")
    assert notebook.value("seen, whole.tolist()") == (7, [0, 0, 0, 7])


def test_large_results_come_back_and_the_data_set_does_not(notebook):
    """What comes back is what the cell made, and of what it was given only what it changed."""
    notebook.run("import jupyter_dtrain.elastic.run_result as watched\nfrom_parcel, parcels = watched.from_parcel, []")
    notebook.run(
        "def noting(parcel, blobs):\n    parcels.append(parcel)\n    return from_parcel(parcel, blobs)\nwatched.from_parcel = noting"
    )
    notebook.run("data = torch.arange(2.0**18).reshape(16, -1)\nloader = DataLoader(TensorDataset(data), batch_size=4)")
    try:
        notebook.run("%%distribute --engines 2\nmodel = nn.Linear(1, 1)\nhalf = data[:8] * 0.5\nfor (x,) in loader:\n    pass")
    finally:
        notebook.run("watched.from_parcel = from_parcel")
    assert notebook.value("(half * 2 == data[:8]).all().item()")
    sizes = notebook.value("[leaf.shape[0] for parcel in parcels for leaf in parcel.leaves if leaf.shape[0] >= 2**16]")
    assert sorted(sizes) == [2**16 * 8, 2**17 * 8]  # the last batch, under the name x, and half
