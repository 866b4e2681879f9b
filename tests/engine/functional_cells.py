"""Functions that are given a layer's weight in the place of the layer: in a model's code, and in the cell on what a model returns."""

from __future__ import annotations

from tests.engine.everyday_cells import HEAD, LOOP

FORMS = {
    "linear": "F.linear(h, self.mid.weight, self.mid.bias)",
    "linear by names": "F.linear(input=h, weight=self.mid.weight)",
    "linear of a jagged tensor": "F.linear(jagged(h), self.mid.weight, self.mid.bias).values()",
    "matmul of a jagged tensor": "(jagged(h) @ self.mid.weight.T).values()",
    "product with a jagged tensor": "(jagged(h) * self.square.weight[3]).values()[:, :12]",
    "linear of a nested tensor": "F.linear(torch.nested.as_nested_tensor([h, h]), self.mid.weight, self.mid.bias).to_padded_tensor(0.0)[1]",
    "linear of a masked tensor": "torch.masked.masked_tensor(h, h > 0).to_tensor(0.0) @ self.mid.weight.T",
    "matmul": "h @ self.mid.weight.T + self.mid.bias",
    "addmm": "torch.addmm(self.mid.bias, h, self.mid.weight.t())",
    "baddbmm": "torch.baddbmm(self.mid.bias.expand(len(h), 1, 12), h.unsqueeze(1), self.mid.weight.t().expand(len(h), 16, 12)).squeeze(1)",
    "einsum": "torch.einsum('bi,oi->bo', h, self.mid.weight)",
    "tensordot": "torch.tensordot(h, self.mid.weight, ([1], [1]))",
    "an operator by its name": "torch.ops.aten.linear(h, self.mid.weight, self.mid.bias)",
    "another operator by its name": "torch.ops.aten.addmm.default(self.mid.bias, h, self.mid.weight.t())",
    "embedding": "F.embedding((h.abs() * 100).long().sum(1) % 12, self.mid.weight)[:, :12]",
    "embedding bag": "F.embedding_bag((h.abs() * 100).long() % 12, self.mid.weight, mode='sum')[:, :12]",
    "bilinear": "F.bilinear(h, h[:, :1], self.mid.weight.unsqueeze(-1), self.mid.bias)",
    "conv1d": "F.conv1d(h.unsqueeze(-1), self.mid.weight.unsqueeze(-1), self.mid.bias).squeeze(-1)",
    "conv2d": "F.conv2d(h.view(-1, 4, 2, 2), self.mid.weight.view(12, 4, 2, 2), self.mid.bias).flatten(1)",
    "transposed convolution": "F.conv_transpose2d(h.view(-1, 16, 1, 1), self.mid.weight.t().unsqueeze(-1).unsqueeze(-1)).flatten(1)",
    "attention": "F.multi_head_attention_forward(h.unsqueeze(0), h.unsqueeze(0), h.unsqueeze(0), 16, 4, None, self.square.bias.repeat(3),"
    " None, None, False, 0.0, self.square.weight, self.square.bias, use_separate_proj_weight=True, q_proj_weight=self.square.weight,"
    " k_proj_weight=self.square.weight, v_proj_weight=self.square.weight)[0][0, :, :12]",
    "dot product attention": "F.scaled_dot_product_attention(h[:, None], self.square.weight.expand(len(h), 16, 16),"
    " self.square.weight.expand(len(h), 16, 16))[:, 0, :12]",
    "a cell of a recurrent network": "torch.rnn_tanh_cell(h, h, self.square.weight, self.square.weight, self.square.bias)[:, :12]",
    "normalization": "F.layer_norm(h, (16,), self.square.bias, self.square.weight[2])[:, :12]",
    "prelu": "F.prelu(h, self.square.bias)[:, :12]",
    "a functional call": "torch.func.functional_call(self.mid, {'weight': self.mid.weight * 2, 'bias': self.mid.bias}, h)",
    "a distance": "torch.cdist(h, self.mid.weight)",
    "a weight that is normed": "h @ (self.mid.weight / self.mid.weight.norm(dim=1, keepdim=True)).T",
    "cosine similarity": "F.cosine_similarity(h[:, None], self.mid.weight[None], dim=-1)",
    "vmap": "torch.vmap(lambda row: self.mid.weight @ row)(h)",
    "gradients of samples": "torch.vmap(torch.func.grad(lambda row: (self.mid.weight @ row).square().sum()))(h)[:, :12]",
    "checkpointed": "torch.utils.checkpoint.checkpoint(F.linear, h, self.mid.weight, self.mid.bias, use_reentrant=False)",
    "checkpointed, given no weight": "torch.utils.checkpoint.checkpoint("
    "lambda h: F.linear(h, self.mid.weight, self.mid.bias), h, use_reentrant=False)",
    "checkpointed, given by names": "torch.utils.checkpoint.checkpoint("
    "F.linear, h, weight=self.mid.weight, bias=self.mid.bias, use_reentrant=False)",
    "checkpointed, given in a list": "torch.utils.checkpoint.checkpoint("
    "lambda h, given: F.linear(h, *given[0]), h, [(self.mid.weight, self.mid.bias)], use_reentrant=False)",
    "checkpointed, given in a dict": "torch.utils.checkpoint.checkpoint("
    "lambda h, given: F.linear(h, **given), h, self.mid._parameters, use_reentrant=False)",
    "checkpointed layer": "torch.utils.checkpoint.checkpoint(self.mid, h, use_reentrant=False)",
    "checkpointed in the older way": "torch.utils.checkpoint.checkpoint(F.linear, h, self.mid.weight, self.mid.bias, use_reentrant=True)",
    "checkpointed with a norm that is not trained": "torch.utils.checkpoint.checkpoint("
    "lambda h, w: F.linear(self.norm(F.layer_norm(h, (16,), self.norm.weight)).tanh(), w), h, self.mid.weight, use_reentrant=False)",
    "a norm that is not trained": "F.linear(self.norm(F.layer_norm(h, (16,), self.norm.weight)).tanh(), self.mid.weight)",
    "a foreach": "h @ torch._foreach_mul([self.mid.weight, self.mid.bias], 0.5)[0].T",
    "a list of parts": "torch.cat([h @ rows.T for rows in self.mid.weight.split(5)], 1)",
}
"""Each is computed of `h`, (B, 16), by `self`, and comes to (B, 12)."""

MODEL = (
    HEAD
    + """
import torch.utils.checkpoint
def jagged(h): return torch.nested.nested_tensor_from_jagged(h, torch.tensor([0, 1, len(h)]))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.mid, self.square, self.last = nn.Linear(8, 16), nn.Linear(16, 12), nn.Linear(16, 16), nn.Linear(12, 5)
        self.norm = nn.LayerNorm(16).requires_grad_(False)
    def forward(self, x):
        h = self.square(self.first(x).tanh())
        return self.last({form})
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
"""
)
IN_CELL = "model.last((lambda self, h: {form})(model, model.square(model.first(x).tanh())))"


def functional_cell(form: str, *, in_model: bool) -> tuple[str, str]:
    """Return a setup, and a cell that trains with a form in a model's code, or else written in the cell."""
    written = FORMS[form]
    cell = LOOP if in_model else LOOP.replace("model(x)", IN_CELL.replace("{form}", written))
    return MODEL.replace("{form}", written if in_model else "self.mid(h)"), cell
