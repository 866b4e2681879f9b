"""Operations on batches that lie in another way, and with numbers over the batch where they take plain ones, are as on one process."""

from __future__ import annotations

import pickle
import random
import re
from pathlib import Path

import pytest

from tests.conftest import in_turn
from tests.engine.ranks import Ranks
from tests.engine.test_rules import ON_PARTS, OPERATIONS, cases, differences, outcomes

NUMBER = re.compile(r"(?<![\w.\"'])\d+(\.\d+)?(?![\w.\"'])")
OVER_THE_BATCH = ("x.mean()", "(x > 0).sum()", "t.sum()", "x.mean().detach()")
LAYOUTS = {
    "x": """x.T  x[:, 0]  x.reshape(-1)  x[:, None]  x.repeat_interleave(2, 0)  x[None]  seq  seq.transpose(0, 1)  seq.reshape(-1, 3)
        x.sum()  x.mean(0)  img  x.T.contiguous()  x > 0  x[1:]  x.unsqueeze(1).expand(-1, 3, -1)  x.view(-1, 2, 2)  y""",
    "t": "x  t[None]  t[:, None]  t.sum()  t > 0  x.T  t.repeat(2)",
    "img": "img.transpose(0, 1)  img.flatten(0, 1)  img.permute(0, 2, 3, 1)  img[:, 0]  img.permute(2, 3, 0, 1)  img.sum(1)  img[0]",
    "seq": "seq.transpose(0, 1)  seq.flatten(0, 1)  seq.mT  x  seq.permute(2, 0, 1)  seq.permute(1, 2, 0)",
    "y": "y[:, None]  y.repeat(2)  y.double()  y > 0  torch.stack([y, y])",
}
# Memory that nobody has set or that is resized, strides, and what is drawn in an order of memory that only a whole batch has; labels
# that are none; and what is written past PyTorch's count while it is computed from the same value.
NOT_COMPARED = ("empty", "out=", "stride()", "alpha_dropout", "clamp(min=(", "ctc_loss", "x.data.")
# With one sample on a rank its part has no order of memory to go by, in which one process draws.
NOT_OF_ONE_SAMPLE = ("is_contiguous", "multinomial", "randn_like", "dropout", "normal_", "uniform_")
# Their gradient is nothing but rounding; `half` rounds it for each share.
NOT_WITH_GRADIENTS = ("x / x.sum()", "cosine_similarity", "half()")
# PyTorch itself is wrong (2.13: a median of what is expanded), and a gradient through a division by zero is infinite times nothing.
NEVER = re.compile(r"expand\(-1, 3, -1\)\n.*median|x = x / \(x > 0\)\.sum\(\)")
SAMPLE = 150
"""Of thousands; `pytest -m long` tries all of them."""


def compared() -> list[str]:
    return [code for code in cases(OPERATIONS + ON_PARTS) if not any(text in code for text in NOT_COMPARED)]


def with_numbers_over_the_batch() -> list[str]:
    found = [
        f"{code[: match.start()]}{number}{code[match.end() :]}"
        for code in compared()
        for match in NUMBER.finditer(code)
        for number in OVER_THE_BATCH
    ]
    return [code for code in dict.fromkeys(found) if not any(text in code for text in NOT_COMPARED)]


def laid_out() -> list[str]:
    return [
        f"{name} = {layout}\n{code}"
        for code in compared()
        for name, layouts in LAYOUTS.items()
        if re.search(rf"\b{name}\b", code)
        for layout in re.split(r"\s{2,}", layouts)
    ]


def of_plain_operands() -> list[str]:
    """Return operations on what every rank has whole, which ask nobody for the sake of a number."""
    lines = (Path(__file__).parent / "plain_numbers.txt").read_text(encoding="utf-8").splitlines()
    return [re.sub(r"\bN\b", "(y >= 0).sum()", code) for code in cases(lines)]


COMBINED = {"numbers": with_numbers_over_the_batch, "layouts": laid_out}


def chosen(kind: str, size: int, requires_grad: bool) -> list[str]:
    without = (*(NOT_OF_ONE_SAMPLE if kind == "layouts" and size == 2 else ()), *(NOT_WITH_GRADIENTS if requires_grad else ()))
    return [code for code in COMBINED[kind]() if not NEVER.search(code) and not any(text in code for text in without)]


def assert_as_on_one_process(ranks: Ranks, codes: list[str], size: int, requires_grad: bool) -> None:
    plain = outcomes(None, codes, size, requires_grad)
    possible = [code for code, outcome in zip(codes, plain, strict=True) if not isinstance(pickle.loads(outcome), str)]
    assert len(possible) > len(codes) / 8
    wrong = [
        line for start in range(0, len(possible), 40) for line in differences(ranks, possible[start : start + 40], size, requires_grad)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("kind", "requires_grad"), in_turn(COMBINED, [True, False]))
def test_a_sample_of_them(ranks, kind, requires_grad):
    assert_as_on_one_process(ranks, random.Random(0).sample(chosen(kind, 7, requires_grad), SAMPLE), 7, requires_grad)


@pytest.mark.parametrize(("size", "requires_grad"), in_turn([7, 2], [True, False]))
def test_numbers_over_the_batch_beside_plain_operands(ranks, size, requires_grad):
    assert_as_on_one_process(ranks, of_plain_operands(), size, requires_grad)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("requires_grad", [False, True], ids=["values", "gradients"])
@pytest.mark.parametrize("size", [7, 2])  # on three ranks: shares that differ, and a rank without a sample
@pytest.mark.parametrize("kind", COMBINED)
def test_all_of_them(ranks, kind, size, requires_grad):
    assert_as_on_one_process(ranks, chosen(kind, size, requires_grad), size, requires_grad)
