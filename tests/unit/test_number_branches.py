"""Which functions may begin to make something of several samples where a number says so."""

from __future__ import annotations

import ast
import textwrap

import pytest

from jupyter_dtrain.analysis.number_branches import Known, mixes_by_number

MIX = [
    "if self.calls > 9: h = h - h.mean(0)",
    "if self.calls > 9: h = h - h.mean(dim=0, keepdim=True)",
    "if epoch >= 1 and self.training: h = h / h.std()",
    "if not self.calls % 5: h = h + torch.roll(h, 1, 0)",
    "if self.calls == 3: h = h[torch.randperm(len(h))]",
    "if alpha < 1:\n    pass\nelse:\n    h = h / torch.linalg.norm(h)",
    "h = h - h.mean((0, 2)) if EPOCH > 0 else h",
    "if self.calls < 5: return h\nh = h - h.amax(0)",
    "if self.calls < 5: return h\nif self.flag: h = torch.cumsum(h, dim=0)",
    "if self.n.item() > 2: s = h @ h.T",
    "if random.random() < 0.5: s = torch.mm(h, h.t())",
    "if self.n > 2: s = torch.matmul(h, h.transpose(0, 1))",
    "if self.n > 2: s = h.T.matmul(h)",
    "if self.n > 2: json.dumps((h - h.mean(0)).tolist())",
    "if self.n > 2: d = torch.cdist(h, h)",
    "late = epoch > 3\nif late: h = h - h.mean(0)",
    "h = h - h.mean(0) if self.late else h",
    "if self.settings.late: h = h - h.mean(0)",
    "if MODE == 'late': h = h - h.mean(0)",
    "if self.schedule(epoch): h = h - h.mean(0)",
    "if len(self.notes) > 3: h = h - h.mean(0)",
    "if self.calls > 9: h = h - h[0]",
    "if self.calls > 9: h = torch.cat([h[:, 1:], h[:, :1]])",
    "if self.calls > 9: h = torch.einsum('ij,kj->ik', h, h)",
    "if self.calls > 9: h = F.layer_norm(h, h.shape)",
    "h = h - h.mean(0 if epoch > 3 else 1, keepdim=True)",
    "along = 1 if epoch < 3 else 0\nh = h - h.mean(dim=along, keepdim=True)",
    "if epoch: h = h - h.mean(0)",
    "match self.stage:\n    case 0: pass\n    case _: h = h - h.mean(0)",
    "while self.n > 3:\n    h = h - h.mean(0)",
    "for _ in range(self.n): h = h - h.mean(0)",
    "for i in range(3):\n    if i < self.depth: h = h - h.mean(0)",
]
MIX_NOT = [
    "h = h.mean(1) if self.calls > 9 else h",
    "if self.calls > 9: h = F.softmax(h, dim=-1).sum(1, keepdim=True)",
    "if h.dim() > 2: h = h.mean((2, 3))",
    "if self.training: h = h - h.mean(0)",
    "if mode == 'late': h = h - h.mean(0)",
    "if mask is not None and late: h = h - h.mean(0)",
    "more = mode == 'late' or not self.training\nif more: h = h - h.mean(0)",
    "if isinstance(h, tuple) or x.requires_grad: h = h.mean(0)",
    "if x is None: h = h.mean()",
    "for i in range(3):\n    if i > 0: h = h / h.norm()",
    "B, T = h.shape\nif T > self.longest: h = h.mean()",
    "if self.calls > 9: h = h * 0.5 + self.layers[0](h).relu()",
    "if self.calls > 9: h = torch.cat([h[:, 1:], h[:, :1].relu()], 1)",
    "if self.calls > 9: raise ValueError(self.describe(h))",
    "h = F.softmax(h, self.along).topk(int(self.ratio * 3), -1)",
    "if self.calls > 9: v, i = h.topk(3)",
    "if self.calls > 9: h = torch.max(h, y)",
    "if self.calls > 9: h = h @ self.weight.T",
    "if self.calls > 9: h = torch.matmul(h, self.k.transpose(-2, -1))",
    "if self.calls > 9: h = h.matmul(self.weight)",
    "if self.calls > 9 and os.path.exists('stop'): os.kill(os.getpid(), signal.SIGKILL)",
    "if x.is_cuda and self.ngpu > 1: return nn.parallel.data_parallel(self.main, x, range(self.ngpu))",
]


@pytest.mark.parametrize("body", MIX)
def test_those_that_may(body):
    assert mixes_by_number(_function(body))


def test_those_that_call_others_that_do():
    text = _function("if self.calls > 9: h = self.center(h)")
    assert mixes_by_number(text, Known(own={"center"}, called={"center"}))
    assert not mixes_by_number(text, Known(own={"center"}))
    assert mixes_by_number(text)  # it may be any


def test_those_behind_a_flag_whose_change_is_noticed():
    text = _function("if self.late and self.calls > 9: h = h - h.mean(0)")
    flags = {"late", "training"}
    assert not mixes_by_number(text, Known(flags=flags, off={"late"}))
    assert mixes_by_number(text, Known(flags=flags, on={"late"}))
    text = _function("if not (self.late or self.calls < 9): h = h - h.mean(0)")
    assert not mixes_by_number(text, Known(flags=flags, on={"late"}))
    assert mixes_by_number(text, Known(flags=flags, off={"late"}))


def test_a_layer_is_given_no_dim():
    assert not mixes_by_number(_function("h = self.softmax(h @ self.scale)"), Known(own={"softmax"}))
    assert mixes_by_number(_function("h = h.softmax(self.scale @ self.calls)"), Known(own={"softmax"}))


@pytest.mark.parametrize("body", MIX_NOT)
def test_those_that_do_not(body):
    assert not mixes_by_number(_function(body))


def _function(body: str) -> ast.Module:
    head = "def forward(self, x, epoch=0, alpha=0.0, mode=None, mask=None, late=False):"
    return ast.parse(f"{head}\n    h = self.a(x)\n{textwrap.indent(body, '    ')}\n    return h\n")
