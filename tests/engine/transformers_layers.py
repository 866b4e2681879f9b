"""Layers that have the names, parameters and operations of those of Hugging Face's transformers, for tests where that is not installed."""

# ruff: noqa: E501  # cells as they are

LLAMA = """
class LlamaMLP(nn.Module):
    def __init__(self, size, width):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = (nn.Linear(a, b, bias=False) for a, b in [(size, width)] * 2 + [(width, size)])
        self.act_fn = nn.SiLU()
    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
LlamaMLP.__module__ = "transformers.models.llama.modeling_llama"
"""
ATTENTION = """
class Config:
    num_attention_heads, num_key_value_heads, _attn_implementation = 12, 6, "sdpa"
class LlamaAttention(nn.Module):
    def __init__(self, size, dropout=0.0):
        super().__init__()
        self.config, self.head_dim, self.attention_dropout = Config(), 2, dropout
        self.q_proj, self.k_proj, self.v_proj = nn.Linear(size, 24, bias=False), nn.Linear(size, 12), nn.Linear(size, 12)
        self.o_proj, self.shapes = nn.Linear(24, size), []
    def forward(self, x, position_embeddings=None, past_key_values=None):
        shape = (*x.shape[:-1], -1, self.head_dim)
        q, k, v = (p(x).view(shape).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        if position_embeddings is not None:
            cos, sin = position_embeddings
            q, k = (z * cos + torch.stack((-z[..., 1], z[..., 0]), -1) * sin for z in (q, k))
        if past_key_values is not None: past_key_values.append(k)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        out = F.scaled_dot_product_attention(q, k, v, mask, self.attention_dropout if self.training else 0.0, enable_gqa=True).transpose(1, 2)
        return self.o_proj(out.reshape(*x.shape[:-1], -1))
LlamaAttention.__module__ = "transformers.models.llama.modeling_llama"
"""
GPT2 = """
class Conv1D(nn.Module):
    def __init__(self, nf, nx):
        super().__init__()
        self.nf, self.weight, self.bias = nf, nn.Parameter(torch.randn(nx, nf) * 0.1), nn.Parameter(torch.zeros(nf))
    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], self.nf)
class Config:
    _attn_implementation = "sdpa"
class GPT2Attention(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.config, self.num_heads, self.head_dim, self.split_size, self.is_cross_attention = Config(), 4, size // 4, size, False
        self.c_attn, self.c_proj = Conv1D(3 * size, size), Conv1D(size, size)
        self.attn_dropout, self.resid_dropout = nn.Dropout(0.2), nn.Dropout(0.1)
    def forward(self, x, cache=None, attention_mask=None):
        q, k, v = (part.view(*x.shape[:-1], -1, self.head_dim).transpose(1, 2) for part in self.c_attn(x).split(self.split_size, dim=2))
        dropped = self.attn_dropout.p if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask, dropout_p=dropped, is_causal=attention_mask is None)
        return self.resid_dropout(self.c_proj(out.transpose(1, 2).reshape(*x.shape[:-1], -1).contiguous()))
class GPT2MLP(nn.Module):
    def __init__(self, size, width):
        super().__init__()
        self.c_fc, self.act, self.c_proj, self.dropout = Conv1D(width, size), nn.GELU(), Conv1D(size, width), nn.Dropout(0.1)
    def forward(self, x):
        return self.dropout(self.c_proj(self.act(self.c_fc(x))))
class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.ln_1, self.attn, self.ln_2, self.mlp = nn.LayerNorm(size), GPT2Attention(size), nn.LayerNorm(size), GPT2MLP(size, 22)
    def forward(self, x):
        mask = torch.ones(1, 1, x.shape[1], x.shape[1], dtype=torch.bool).tril()
        x = x + self.attn(self.ln_1(x), None, attention_mask=mask) + self.attn(x)
        return x + self.mlp(self.ln_2(x))
Conv1D.__module__ = "transformers.pytorch_utils"
GPT2Attention.__module__ = GPT2MLP.__module__ = "transformers.models.gpt2.modeling_gpt2"
"""
