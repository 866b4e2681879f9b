"""``torch.set_default_device``: a notebook's tensors are made on its GPU, and this project's own on the devices that it means."""

import ast
from pathlib import Path

import pytest
import torch
from torch.utils._device import _device_constructors

import jupyter_dtrain
from jupyter_dtrain.serialization.pickler import Packer
from jupyter_dtrain.serialization.unpickler import Unpacker

PACKAGE = Path(jupyter_dtrain.__file__).parent
MAKERS = {maker.__name__ for maker in _device_constructors()}
# What loaders do themselves, what is compared with its like, and what is made where no notebook is yet.
ANYWHERE = {
    "cluster/forkserver.py": ["zeros"],
    "data/samplers.py": ["empty"],
    "engine/data/batch_comparison.py": ["as_tensor"] * 4,
    "engine/data/worker_states.py": ["empty"],
    "engine/verify/frozen.py": ["tensor"],
    "engine/verify/gradient_probes.py": ["zeros"],
}


@pytest.fixture
def elsewhere():
    """Let new tensors be on a device where no number can be read."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


def test_what_is_sent_is_read_where_it_was(elsewhere):
    sent = [torch.arange(5, device="cpu"), torch.ones(2, 3, device="cpu", requires_grad=True)]
    packer = Packer(namespace={})
    packer.dump(sent)
    found = Unpacker(packer.packed(), namespace={}).load()
    assert [one.tolist() for one in found] == [one.tolist() for one in sent]


def test_no_tensor_of_ours_is_made_where_the_notebook_says():
    found: dict[str, list[str]] = {}
    texts = {file: file.read_text() for file in sorted(PACKAGE.rglob("*.py"))}
    for file, text in texts.items():
        for node in ast.walk(ast.parse(text)) if "torch." in text else ():
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr=name), keywords=options) if name in MAKERS:
                    if not {"device", None}.intersection(option.arg for option in options):
                        found.setdefault(str(file.relative_to(PACKAGE)), []).append(name)
    assert found == ANYWHERE
