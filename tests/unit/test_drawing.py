"""What models draw on a rank's part of a batch is, put together, what one process draws, and so is the stream afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint

from jupyter_dtrain.engine.rng.global_rng import ModelSampling
from jupyter_dtrain.engine.rng.global_sampling import GlobalSampling
from jupyter_dtrain.engine.rng.sample_sites import SampleSites, Site, dims_of, guesses
from jupyter_dtrain.engine.rng.streams import ModelStream, TorchState
from jupyter_dtrain.engine.tensor.batch_shard import share_of
from jupyter_dtrain.engine.tensor.placement_types import Shard

TOTAL = 12
SPEEDS = [1.0, 2.5, 1.0]


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    before, state = torch.get_default_dtype(), TorchState.now()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(3)
    yield
    torch.set_default_dtype(before)
    state.set()


def on_a_part(
    model: Callable[[Any], Any], x: torch.Tensor, dim: int, rank: int, sites: SampleSites | None = None
) -> tuple[Any, GlobalSampling]:
    placement = Shard(dim, share_of(TOTAL, rank, SPEEDS))
    torch.manual_seed(7)
    stream = ModelStream(rank)
    part = x[(slice(None),) * dim + (placement.loaded,)]
    stream.switch()
    try:
        with GlobalSampling(placement.share.loaded, placement.share.total, stream, sites) as drawing:
            return model(part), drawing
    finally:
        stream.switch()


def assert_drawn_as_one(model: Callable[[Any], Any], shape: tuple[int, ...], dim: int = 0) -> None:
    x = torch.randn(shape)
    torch.manual_seed(7)
    expected, after = model(x), torch.get_rng_state()
    parts = []
    for rank in range(len(SPEEDS)):
        part, drawing = on_a_part(model, x, dim, rank)
        parts.append(part)
        assert drawing.drawn, "it draws"
        assert torch.equal(torch.get_rng_state(), after), "the cell's stream goes on as on one process"
    torch.testing.assert_close(torch.cat(parts, dim), expected, rtol=1e-12, atol=1e-14)


def noise(draw: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x + draw(x)


@pytest.mark.parametrize(
    "model",
    [
        nn.Dropout(0.4),
        nn.Dropout(0.4, inplace=True),
        nn.AlphaDropout(0.4),
        lambda x: F.alpha_dropout(x * 2, 0.3, True, inplace=True),
        lambda x: nn.FeatureAlphaDropout(0.4)(x.view(-1, 5, 1)).flatten(1),
        lambda x: torch.dropout(x, 0.3, True),
        noise(torch.randn_like),
        noise(torch.rand_like),
        noise(lambda x: torch.randn(x.size(0), 1)),
        noise(lambda x: torch.randn((len(x), 5), dtype=x.dtype)),
        noise(lambda x: torch.rand(x.shape)),
        noise(lambda x: torch.randn(5)),
        noise(lambda x: torch.randint(0, 9, (len(x), 1))),
        noise(lambda x: torch.randint(9, size=(len(x), 1))),
        noise(lambda x: torch.normal(0.0, 2.0, size=(x.size(0), 5))),
        noise(lambda x: x.data.new(x.size()).normal_(0, 2)),
        noise(lambda x: x.new_empty((x.shape[0], 1)).bernoulli_(0.7)),
        noise(lambda x: torch.empty_like(x).bernoulli_(x.sigmoid())),
        lambda x: torch.normal(x, torch.ones_like(x)),
        lambda x: torch.bernoulli(x.sigmoid()),
        lambda x: torch.multinomial(x.softmax(1), 2),
        lambda x: torch.distributions.Normal(x, 1.0).rsample(),
        lambda x: torch.distributions.Categorical(logits=x).sample(),
        lambda x: F.gumbel_softmax(x, hard=True),
        lambda x: F.dropout(F.dropout(x, 0.2) + torch.randn_like(x), 0.2),
    ],
)
def test_draws_for_rows(model):
    assert_drawn_as_one(model, (TOTAL, 5))


def test_layouts_in_memory():
    assert_drawn_as_one(nn.Dropout2d(0.4), (TOTAL, 3, 4, 4))
    assert_drawn_as_one(lambda x: F.dropout(x.to(memory_format=torch.channels_last), 0.5), (TOTAL, 3, 4, 4))
    assert_drawn_as_one(lambda x: F.dropout(x.transpose(1, 2), 0.5), (TOTAL, 7, 4))
    assert_drawn_as_one(lambda x: F.dropout(x.transpose(0, 1).contiguous(), 0.5).transpose(0, 1), (TOTAL, 7, 4))
    assert_drawn_as_one(lambda x: F.dropout(x.reshape(-1, 4), 0.5).view(x.shape), (TOTAL, 7, 4))
    assert_drawn_as_one(lambda x: F.dropout(x, 0.5), (7, TOTAL, 4), dim=1)


def recurrent(kind: type[nn.Module], **options: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    model = kind(5, 4, **options)
    return lambda x: model(x)[0]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_dropout_between_recurrent_layers(kind):
    assert_drawn_as_one(recurrent(kind, num_layers=3, dropout=0.4, batch_first=True), (TOTAL, 7, 5))
    assert_drawn_as_one(recurrent(kind, num_layers=2, dropout=0.4, bidirectional=True), (7, TOTAL, 5), dim=1)


def test_a_projected_lstm_and_its_last_states():
    model = nn.LSTM(5, 4, 2, dropout=0.4, batch_first=True, proj_size=2)
    assert_drawn_as_one(lambda x: torch.cat([part.transpose(0, 1).flatten(1) for part in model(x)[1]], 1), (TOTAL, 7, 5))


def test_attention():
    attention = nn.MultiheadAttention(6, 2, dropout=0.3, batch_first=True)
    assert_drawn_as_one(lambda x: attention(x, x, x)[0], (TOTAL, 5, 6))
    assert_drawn_as_one(lambda x: attention(x, x, x, need_weights=False)[0], (TOTAL, 5, 6))
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 8, dropout=0.3, batch_first=True), 2)
    assert_drawn_as_one(encoder, (TOTAL, 5, 6))
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    assert_drawn_as_one(lambda x: encoder(x, mask=mask, is_causal=True), (TOTAL, 5, 6))


def test_attention_that_is_told_what_to_see():
    def padded(x):
        h = x.view(len(x), 5, 2, 3).transpose(1, 2)
        return F.scaled_dot_product_attention(h, h, h, attn_mask=(x[..., 0] > -0.5)[:, None, None], dropout_p=0.3)

    assert_drawn_as_one(padded, (TOTAL, 5, 6))
    causal = torch.ones(5, 5).tril().bool()
    assert_drawn_as_one(lambda x: F.scaled_dot_product_attention(x, x, x, causal, 0.3), (TOTAL, 2, 5, 6))


def test_gradients_go_through_the_masks_that_were_drawn():
    x = torch.randn(TOTAL, 5)
    weight = torch.randn(5, requires_grad=True)
    torch.manual_seed(7)
    (expected,) = torch.autograd.grad(F.dropout(x * weight, 0.5).sum(), weight)
    found = [
        torch.autograd.grad(on_a_part(lambda part: F.dropout(part * weight, 0.5), x, 0, rank)[0].sum(), weight)[0] for rank in range(3)
    ]
    torch.testing.assert_close(sum(found), expected)


def forward_and_backward(model, *, total, per_rank):
    """Return the results of a model on the rank's part and their gradient by it, where the model's draws are for the whole batch or not."""
    stream = ModelStream(0)
    draws = ModelSampling(stream, on_apart=lambda: None, on_unknown=lambda _: None)
    placement = Shard(0, share_of(total, 0, [1.0, 1.0]))
    with draws.installed():
        with draws.drawing(nn.Identity(), placement) as drawing:
            x = torch.ones(placement.share.num_samples, 5, requires_grad=True)
            stream.switch()
            out = model(x)
            stream.switch()
        assert drawing is not None
        assert (drawing.result is None) == per_rank
        after = torch.get_rng_state()
        out.sum().backward()
        assert torch.equal(torch.get_rng_state(), after), "a backward pass leaves the stream as it is"
    assert x.grad is not None
    return out.detach(), x.grad


def test_a_model_that_looks_at_random_states_draws_for_itself():
    out, gradient = forward_and_backward(lambda x: (torch.manual_seed(5), F.dropout(x, 0.5))[1], total=TOTAL, per_rank=True)
    assert torch.equal(out, gradient)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize(
    "part",
    [
        lambda y: F.dropout(F.dropout(y, 0.5), 0.3),
        lambda y: F.dropout(y * F.alpha_dropout(torch.ones_like(y), 0.5), 0.5),
        lambda y: F.dropout(checkpoint(lambda z: F.dropout(z, 0.5), y, use_reentrant=False), 0.5),
    ],
)
def test_what_is_computed_again_draws_again(part, reentrant):
    def model(x):
        return F.dropout(checkpoint(part, F.dropout(x, 0.2), use_reentrant=reentrant), 0.2)

    torch.manual_seed(7)
    out, gradient = forward_and_backward(model, total=TOTAL, per_rank=False)
    assert torch.equal(out, gradient), "the backward pass has the masks of the forward pass"
    assert out.any()


def test_what_is_computed_again_draws_for_the_whole_batch():
    def model(x):
        return checkpoint(lambda y: F.dropout(y, 0.5), x, use_reentrant=False)

    torch.manual_seed(7)
    expected = model(torch.ones(TOTAL, 5))
    torch.manual_seed(7)
    out, _ = forward_and_backward(model, total=TOTAL, per_rank=False)
    assert torch.equal(out, expected[: len(out)])


def test_what_is_not_known_how_to_draw_is_noticed():
    packed = nn.LSTM(5, 4, 2, dropout=0.5, batch_first=True)
    for model in (
        lambda x: torch.native_dropout(x, 0.3, True)[0],
        lambda x: packed(pack_padded_sequence(x[:, None], [1] * len(x), batch_first=True))[0].data,
        lambda x: F.dropout(torch.native_dropout(x, 0.3, True)[0], 0.5),
    ):
        x, stream = torch.randn(4, 5), ModelStream(0)
        before = torch.get_rng_state()
        with GlobalSampling(slice(0, 4), TOTAL, stream, None) as drawing:
            stream.switch()
            model(x)
            stream.switch()
        assert drawing.has_drawn_apart()
        assert drawing.result is None
        assert drawing.drawn or torch.equal(torch.get_rng_state(), before), "the cell's stream was not touched"


def test_as_many_numbers_as_values_of_all_samples_say():
    assert on_a_part(nn.RReLU(), torch.randn(TOTAL, 5), 0, 0)[1].shuffles
    assert on_a_part(lambda x: torch.rrelu_(x, training=True), torch.randn(TOTAL, 5), 0, 0)[1].shuffles
    assert not on_a_part(nn.RReLU().eval(), torch.randn(TOTAL, 5), 0, 0)[1].shuffles


# -- which dim has the samples -----------------------------------------------------------------------------------------


def sites(*shapes: tuple[int, ...], function: str = "randn") -> list[Site]:
    return [Site(function, shape) for shape in shapes]


def test_the_dim_that_follows_the_samples_of_each_rank():
    assert dims_of([sites((3, 5), (7, 6)), sites((2, 5), (7, 4))], None, [3, 2]) == [0, 1]
    assert dims_of([sites((4,)), sites((4,))], None, [3, 2]) == [None]


def test_equal_shares_leave_it_open_unless_it_is_dropout():
    shape = (3, 5)
    assert dims_of([sites(shape), sites(shape)], None, [3, 3]) is None, "noise of a weight may have this shape"
    assert dims_of([sites(shape, function="dropout")] * 2, None, [3, 3]) == [0]
    assert dims_of([sites((3, 3), function="dropout")] * 2, None, [3, 3]) is None


def test_one_sample_more_tells():
    drawn = sites((3, 3), (3, 3), (6, 2), (3,))
    assert dims_of([drawn, drawn], [sites((4, 3), (3, 4), (8, 2), (3,))] * 2, [3, 3]) == [0, 1, 0, None]
    assert dims_of([drawn, drawn], [sites((4, 3))] * 2, [3, 3]) is None, "the number of draws depends on the batch"
    assert dims_of([sites((3, 3)), sites((3, 3), (3, 3))], None, [3, 3]) is None, "ranks draw differently"


def test_draws_in_a_loop_that_got_longer_are_known_by_their_kind():
    known = SampleSites(sites((3, 5), function="dropout"), [0])
    assert known.dim(17, Site("dropout", (2, 5))) == 0
    with pytest.raises(KeyError):
        known.dim(0, Site("dropout", (2, 5, 5)))
    mixed = SampleSites(sites((3, 5), (5, 3)), [0, 1])
    assert mixed.dim(1, Site("randn", (5, 2))) == 1
    with pytest.raises(KeyError):
        mixed.dim(2, Site("randn", (5, 2)))


def test_what_cannot_be_told_is_guessed_from_sizes_unless_they_do_not_follow_the_samples():
    assert guesses([sites((3, 5), (1,), (6, 2)), sites((2, 5), (1,), (4, 2))], [3, 2]) == [0, None, 0]
    assert guesses([sites((3, 3)), sites((3, 3), (3, 3))], [3, 3]) is None
    assert guesses([sites((5, 3)), sites((7, 3))], [5, 2]) is None
