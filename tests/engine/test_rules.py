"""Every operation on a batch that is shared out gives what it gives on the whole batch: value, shape, type and gradient."""

from __future__ import annotations

import pickle
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

from jupyter_dtrain.engine.data.batch_layout import placed
from jupyter_dtrain.engine.tensor.batch_shard import share_of
from jupyter_dtrain.engine.tensor.ops.dispatch import Rules
from tests.conftest import in_turn
from tests.engine.ranks import RankError, Ranks, Run, double_precision
from tests.notebook.corpus_cells import apart

# On x: (B, 4), y: (B,) classes of 3, t: (B,), img: (B, 2, 4, 4), seq: (B, 5, 3), which are shared out, and on w: (4,), a leaf, and
# z: (B, 4), which every rank has whole.
OPERATIONS = (Path(__file__).parent / "operations.txt").read_text(encoding="utf-8").splitlines()
RARE = (Path(__file__).parent / "rare_operations.txt").read_text(encoding="utf-8").splitlines()  # with arguments that few rules take
ON_PARTS = (Path(__file__).parent / "on_parts.txt").read_text(encoding="utf-8").splitlines()  # which put no batch together


def cases(lines: list[str]) -> list[str]:
    return [line if "result = " in line else f"result = {line}" for line in lines]


def batch_of(size: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(size)
    shapes = {"x": (size, 4), "t": (size,), "img": (size, 2, 4, 4), "seq": (size, 5, 3)}
    found = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
    return {**found, "y": torch.randint(0, 3, (size,), generator=generator)}


@double_precision()
def evaluate(run: Run | None, code: str, size: int, requires_grad: bool) -> tuple[Any, Any]:
    """Return what `code` computes from a batch, and the gradient of its sum where it has one."""
    torch.manual_seed(0)
    w = torch.randn(4, requires_grad=requires_grad)
    z = torch.randn(size, 4)
    batch = batch_of(size)
    if run is not None:
        share = share_of(size, run.rank, [1.0] * run.world_size)
        batch = placed({name: value[share.loaded] for name, value in batch.items()}, share)
    namespace = {"torch": torch, "nn": torch.nn, "F": F, "w": w, "z": z, **batch}
    if requires_grad:
        code = "x, t, seq, img = x * w, t * w[0], seq * w[1], img * w[2]\n" + code
    exec(code, namespace)
    result = namespace["result"]
    values = [leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if requires_grad and values:
        weighted = [(value * torch.linspace(1, 2, value.numel()).reshape(value.shape)).sum() for value in values]
        sum(weighted[1:], weighted[0]).backward()
    return result, w.grad


def outcomes(run: Run | None, codes: list[str], size: int, requires_grad: bool) -> list[bytes]:
    """Return what comes out of each, pickled; an error by its type."""
    training = None if run is None else run.training()
    found = []
    with nullcontext() if training is None else training.installed():
        for code in codes:
            try:
                result = evaluate(run, code, size, requires_grad)
                found.append(pickle.dumps(result if training is None else tuple(training.materialize(*result))))
            except Exception as error:
                found.append(pickle.dumps(f"{type(error).__name__}: {error}"[:300]))
    return found


def differences(ranks: Ranks, codes: list[str], size: int, requires_grad: bool) -> list[str]:
    """Return what is not as on one process, a line for each of `codes`."""
    try:
        of_ranks = ranks.call(3, outcomes, codes, size, requires_grad)
    except RankError as error:
        if len(codes) == 1:
            return [f"{codes[0]}: {str(error)[:200]}"]
        return [line for code in codes for line in differences(ranks, [code], size, requires_grad)]
    wrong = []
    for code, plain, *answers in zip(codes, outcomes(None, codes, size, requires_grad), *of_ranks, strict=True):
        expected = pickle.loads(plain)
        for rank, found in enumerate(map(pickle.loads, answers)):
            if isinstance(expected, str):  # one process refuses it, too
                different = None if isinstance(found, str) else f"{expected} and a result"
            else:
                coarse = any(name in code for name in ("float32", "float()", "FloatTensor", "half"))
                different = apart(expected, found, 2e-3 if coarse else 1e-9, path="result")
            if different:
                wrong.append(f"rank {rank}: {code}: {different}")
                break
    return wrong


# On three ranks: shares that differ, and a rank without a sample.
@pytest.mark.parametrize(
    ("size", "requires_grad", "each"),
    [(7, True, 3), (2, False, 4), *(pytest.param(size, grad, 1, marks=pytest.mark.long) for size in (7, 2) for grad in (True, False))],
)
def test_every_operation_is_as_on_one_process(ranks, size, requires_grad, each):
    codes = cases(OPERATIONS + ON_PARTS)[::each] + cases(RARE)
    wrong = [line for start in range(0, len(codes), 40) for line in differences(ranks, codes[start : start + 40], size, requires_grad)]
    assert not wrong, "\n".join(wrong)


def put_together(run: Run, codes: list[str], size: int) -> list[str]:
    """Return those of `codes` for which a batch is put together."""
    found = []
    for code in codes:

        def on_wholes(*_: Any, code: str = code) -> Any:
            raise AssertionError(code)

        with mock.patch.object(Rules, "on_wholes", on_wholes):
            (answer,) = map(pickle.loads, outcomes(run, [code], size, False))
        if isinstance(answer, str):
            found.append(answer)
    return found


@pytest.mark.long
def test_these_operations_put_no_batch_together(ranks):
    for found in ranks.call(3, put_together, cases(ON_PARTS), 7):
        assert not found, "\n".join(found)


WRITTEN = """
row = x[0]; row *= 2; result = x + 0, x[0], x.sum()
for image in img: image.sub_(image.mean())
result = img.mean((1, 2, 3)), img
x[1][2] = 7; x[0].zero_(); result = x * 1
row = x[0]; x.mul_(2); result = row, x * 1, row + x[1]
rows = x[1:]; x -= z; x.add_(w); result = rows, x, x.sum(1)
row = x[0]; x.zero_(); x[0] = 3; result = row, x
row = x[0]; x.normal_(); result = row, x, torch.rand(2)
rows = x[:2]; rows += 1; x[0] = 3; rows.mul_(5); result = x, rows
for i, row in enumerate(x): row[:] = i
result = nn.Linear(4, 2)(x), x
first = x[0]; result = x * 2; first.fill_(9); result = result, x, x.max()
t[0].add_(1), t[-1].mul_(4); result = [float(v) for v in t], t * 1
v = x.clone(); v[1:] += x[:-1]; result = v
v = x.clone(); v[:1] *= 2; result = v
v = x.clone(); r = v[0]; r *= 2; result = v
v = x.clone(); r = v[0]; r *= 2; result = v.sum(1)
v = x * 1; r = v[0]; r *= 2; result = torch.cat([v, v], 1)
v = x.detach().clone(); r = v[0]; r *= 2; result = torch.cat([v, v], 1)
v = x.detach().clone(); r = v.view(-1)[0]; r *= 2; result = v * 1
v = x.detach().clone(); r = v.t()[0]; r *= 2; result = v * 1
v = x.detach().clone(); r = v.detach()[0]; r *= 2; result = v.mean(1)
v = x.detach().clone(); r = v[0][1:3]; r *= 2; result = v.mean(1), v.detach()[0]
v = x * 1; r = v[0]; r *= 2; v.mul_(3); s = v[-1]; s += 1; result = v * w
v = x.clone(); r = v.view(-1); r[0] = 3; result = v
v = x.clone(); v.T[0] *= 2; result = v
v = seq.transpose(0, 1).clone(); v[:, 0] *= 2; r = v[:, 1]; r += 1; result = v
v = x.clone(); v[t > 0] *= 2; result = v
v = x.clone(); v[v > 0] += 1; result = v
v = x.clone(); r = v[:, 0]; r += t; result = v
v = x.clone(); v.diagonal().mul_(2); result = v
v = x.clone(); r = v.unsqueeze(0)[0, 0]; r += 1; result = v
v = x.clone(); v[0].add_(1).mul_(2); v[-1] -= v[0]; result = v
v = x.clone(); u = v[0] * 2; r = v[0]; r += 1; result = u, v
v = x * 1; u = v[0].exp(); v[0] += u; result = v.sum(0), u
"""


@pytest.mark.parametrize(("size", "requires_grad"), in_turn([7, 2], [True, False]))
def test_what_is_written_into_samples_of_a_batch_is_in_the_batch(ranks, size, requires_grad):
    codes = [code.replace("\\n", "\n") for code in WRITTEN.replace("\nresult", "\\nresult").strip().splitlines()]
    assert not [answer for answer in map(pickle.loads, outcomes(None, codes, size, False)) if isinstance(answer, str)]
    assert not differences(ranks, codes, size, requires_grad)
