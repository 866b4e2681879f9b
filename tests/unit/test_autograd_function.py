"""What runs ``torch.autograd.Function``: a class method, whoever wrote it."""

import torch

from jupyter_dtrain.engine.tensor.autograd_function import current_apply


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def test_apply_is_called_with_the_class_first():
    x = torch.ones(2, requires_grad=True)
    (gradient,) = torch.autograd.grad(current_apply()(Doubled, x).sum(), x)
    assert gradient.tolist() == [2, 2]


def test_apply_of_c_is_called_as_that_of_python(monkeypatch):
    monkeypatch.setattr(torch.autograd.Function, "apply", vars(dict)["fromkeys"])  # as PyTorch has it from 2.15 on
    assert current_apply()(dict, "ab", 1) == {"a": 1, "b": 1}
