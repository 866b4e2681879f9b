"""Real models of Hugging Face's transformers, where that is installed: attention by heads, MLPs in pairs, whole models."""

from __future__ import annotations

import pytest

from tests.engine.test_tensor_pairs import ONE_STEP, count
from tests.engine.test_tensor_parallel import check, some

pytest.importorskip("transformers")

SETUP = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from transformers import {name}Config, {name}ForCausalLM
ids = torch.randint(0, 60, (12, 9))
loader = DataLoader(TensorDataset(ids[:, :-1], ids[:, 1:]), batch_size=4, shuffle=True)
X, Y = ids[:, :-1], ids[:, 1:]
config = {name}Config(vocab_size=60, hidden_size=24, intermediate_size=44, num_hidden_layers=2,
                      num_attention_heads=6, num_key_value_heads={kv}, use_cache=False,
                      bos_token_id=1, eos_token_id=2, pad_token_id=0, tie_word_embeddings={tied})
config._attn_implementation = "{attention}"
model = {name}ForCausalLM(config).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
losses = []
"""
LOOP = """
for x, y in loader:
    loss = model(input_ids=x, labels=y).loss
    optimizer.zero_grad()
    loss.backward()
    losses.append(loss.item())
    losses.append(model.model.layers[0].self_attn.q_proj.weight.grad.norm().item())
    optimizer.step()
"""
CACHE = """
model.eval()
with torch.no_grad():
    out = model(X[:, :5], use_cache=True)
    cache = getattr(out, "cache", None) if getattr(out, "cache", None) is not None else out.past_key_values
    losses += [layer.keys.shape[1] for layer in cache.layers] + [layer.keys.sum().item() for layer in cache.layers]
    losses.append(model.generate(X[:2], max_new_tokens=4, do_sample=False).tolist())
    mask = torch.ones_like(X); mask[:3, :4] = 0
    losses.append(model(X, attention_mask=mask).logits.sum().item())
    losses.append([float(h.sum()) for h in model(X, output_hidden_states=True).hidden_states])
model.train()
"""
STATE = "losses, [p for p in model.parameters()], [p.grad for p in model.parameters()]"


def setup(name: str = "Llama", kv: int = 2, attention: str = "sdpa", tied: bool = False) -> str:
    return SETUP.format(name=name, kv=kv, attention=attention, tied=tied)


GPT2 = setup("GPT2", 6).replace("hidden_size=24, intermediate_size=44,", "n_embd=24, n_inner=44, n_positions=16, {dropped}")
GPT2 = (
    GPT2.replace("GPT2ForCausalLM", "GPT2LMHeadModel")
    .replace("num_hidden_layers=2", "n_layer=2")
    .replace("num_attention_heads=6, num_key_value_heads=6", "n_head=6")
)
NO_DROPOUT = "attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0,"
MODELS = {
    "GPT-2": GPT2.replace("{dropped}", ""),
    "GPT-2 without dropout": GPT2.replace("{dropped}", NO_DROPOUT),
    "dropout": setup().replace("use_cache=False", "use_cache=False, attention_dropout=0.2"),
    "Llama": setup(),
    "all heads of keys": setup(kv=6),
    "eager": setup(attention="eager"),
    "tied": setup(tied=True),
    "Mistral": setup("Mistral"),
    "Qwen2": setup("Qwen2"),
}


@pytest.mark.parametrize(("name", "num_ranks"), some([("Llama", 2), ("Llama", 3), ("GPT-2", 2), ("GPT-2", 3)], MODELS, (2, 3, 4)))
def test_a_whole_model_is_divided(ranks, name, num_ranks):
    loop = LOOP.replace("model.layers[0].self_attn.q_proj", "transformer.h[0].attn.c_attn") if "GPT" in name else LOOP
    for of_rank in check(ranks, num_ranks, MODELS[name], loop + CACHE + loop, STATE):
        assert len(of_rank["shapes"]) >= ((13 if num_ranks < 4 else 7) if "GPT" in name else 14)  # of 6 heads 4 ranks have no equal part


def test_what_a_whole_model_exchanges(ranks):
    """Of each of two layers a sum for attention and one for its MLP, each way, and the columns of the head."""
    step = ONE_STEP.replace("model(X)", "model(X).logits")
    for found in ranks.call(2, count, MODELS["Llama"], step):
        assert found == [*[("reduce", 24)] * 4, ("gather", 60), *[("reduce", 24)] * 5]


def test_what_gpt_2_exchanges(ranks):
    step = ONE_STEP.replace("model(X)", "model(X).logits")
    for found in ranks.call(2, count, MODELS["GPT-2"], step):
        assert found == [*[("reduce", 24)] * 4, ("gather", 60), *[("reduce", 24)] * 5]
