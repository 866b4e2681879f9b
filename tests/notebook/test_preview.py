"""`%distribute preview` and `%%distribute --preview`: what a cell would send, before anything is sent."""

PLAIN = "total = sum(parameter.sum() for parameter in model.parameters())"
TRAINED = "for x, in loader:\n    model(x)"


def test_what_a_cell_would_send(new_notebook):
    """Before it runs, again after it has, and of one that ran by itself."""
    notebook = new_notebook()
    notebook.run("%load_ext jupyter_dtrain")
    cell = notebook.fail("%distribute preview")
    assert cell.error[0] == "UsageError"
    assert "No cell has been distributed yet" in cell.error[1]
    notebook.run("import torch\nfrom torch import nn\nfrom torch.utils.data import DataLoader, TensorDataset")
    notebook.run("data = torch.zeros(8, 3)\nloader = DataLoader(TensorDataset(data), batch_size=4)\nmodel = nn.Linear(3, 1)")
    number = notebook.value("len(In) - 1") + 1
    notebook.run(PLAIN)
    notebook.run("loader")

    shown = notebook.run(f"%%distribute --preview\n{TRAINED}").stdout
    assert [line.split()[0] for line in shown.splitlines()[:3]] == ["name", "loader", "model"]
    assert "DataLoader, batches of 4" in shown
    again = notebook.run("%distribute preview").stdout
    assert again.partition("\n\n")[2] == shown
    notebook.run("model = nn.Linear(300, 100)")
    assert "30.1k parameters" in notebook.run("%distribute preview").stdout

    plain = notebook.run(f"%distribute preview {number}").stdout
    assert plain.startswith(f"Cell [{number}]\n\nname ")
    assert "loader" not in plain
    for wrong, said in ((0, "no cell [0]"), (10_000, "no cell [10000]"), ("x", "'x' is not a whole number")):
        assert said in notebook.fail(f"%distribute preview {wrong}").error[1]
    assert notebook.engines() == []


def bytes_of(shown):
    """Return the bytes in a table of plans, by the number of engines and the strategy. The last column, times, is measured."""
    rows = [line.split() for line in shown.splitlines()]
    return {tuple(row[:2]): row[2:-2] for row in rows if row[:1] and row[0].isdigit()}


def test_what_a_cell_would_take(new_notebook):
    """Of a cell that ran by itself, before any engine is there."""
    notebook = new_notebook()
    notebook.run("%load_ext jupyter_dtrain\nimport torch\nfrom torch import nn\nfrom torch.utils.data import DataLoader, TensorDataset")
    notebook.run(
        "model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))\n"
        "optimizer = torch.optim.Adam(model.parameters())\n"
        "loader = DataLoader(TensorDataset(torch.randn(96, 64), torch.randint(10, (96,))), batch_size=32, shuffle=True)\n"
        "before = torch.get_rng_state()"
    )
    number = notebook.value("len(In) - 1") + 1
    notebook.run("for x, y in loader:\n    nn.functional.cross_entropy(model(x), y)\n    optimizer\n    break\ntorch.set_rng_state(before)")
    shown = notebook.run(f"%distribute plan {number} -n 2 --device cpu").stdout
    assert shown.startswith(
        f"Cell [{number}]\n\nmodel under Adam, batches of 32; bytes of tensors on cpu, with cross_entropy for its loss."
    )
    rows = {tuple(line.split()[:2]): line for line in shown.splitlines()}
    assert ("1", "auto") in rows
    assert ("2", "zero1") in rows
    assert "150 KiB" in rows["2", "auto"], "of parameters"
    assert "--strategy auto: " in shown
    assert "for each of 2 engines; all of the model fits." in shown
    assert notebook.value("torch.equal(torch.get_rng_state(), before)")
    assert notebook.engines() == []
    notebook.run("available, torch.cuda.is_available = torch.cuda.is_available, lambda: True")  # then a fork would not do
    try:
        again = notebook.run(f"%distribute plan {number} -n 2 --device cpu").stdout
    finally:
        notebook.run("torch.cuda.is_available = available")
    assert bytes_of(again) == bytes_of(shown)
    assert "knows only the memory of this host" in notebook.fail(f"%distribute plan {number} --hosts a:2,b:2").error[1]
    notebook.run("model = nn.Linear(3, 1)")
    assert "What model takes cannot be predicted before the cell runs" in notebook.fail(f"%distribute plan {number}").error[1]
