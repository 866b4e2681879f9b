"""The table of rules: which function has which rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from ..scalar_args import read_numbers
from .autograd import backward, grad, gradient, in_graph
from .dispatch import Rule, Rules
from .factories import (
    constant_like,
    contiguous,
    deepcopy,
    drawn_by_entry,
    dropout,
    in_python,
    layout,
    local_value,
    new_like,
    random_like,
    set_property,
)
from .indexing import gather, index, look_up, select
from .joining import as_other, broadcast, columns, join, part_along
from .losses import ctc, loss
from .matmul import addmm, einsum, instance_norm, lookup, matrices, product, rowwise
from .operands import globals_in
from .pairwise import affine_grid, attention, distances, outer, paired, pairwise
from .pointwise import elementwise, keeps, to_dtype
from .reads import read, read_number, read_text
from .reductions import FFT_NAMES, NAMES, all_or_any, along, extreme, inner, mean, quantile, scatter, total, unpack
from .unscaling import unscale
from .views import (
    IN_PLACE,
    count,
    detach_in_place,
    expand,
    flatten,
    move,
    permute,
    repeat,
    repeat_interleave,
    reshape,
    reshape_in_place,
    shape,
    squeeze,
    unflatten,
    unsqueeze,
)

_UNARY = """abs absolute acos acosh asin asinh atan atanh bitwise_not ceil cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1
fix floor frac isfinite isinf isnan isneginf isposinf isreal lgamma log log10 log1p log2 logical_not logit nan_to_num
neg negative positive
rad2deg reciprocal relu round rsqrt sigmoid sign signbit sin sinc sinh sqrt square tan tanh trunc sgn angle conj real imag
i0 polygamma mvlgamma clamp clip clamp_min clamp_max masked_fill fill where lerp addcmul addcdiv nextafter
__abs__ __invert__ __neg__ __pos__"""
_BINARY = """add sub subtract rsub mul multiply div divide true_divide floor_divide fmod remainder pow float_power atan2 arctan2 hypot
maximum minimum fmax fmin eq ne lt le gt ge not_equal greater greater_equal less less_equal isclose logical_and logical_or logical_xor
bitwise_and bitwise_or bitwise_xor xlogy copysign heaviside logaddexp logaddexp2 ldexp complex polar gcd lcm
__add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __rdiv__ __div__ __floordiv__ __rfloordiv__
__mod__ __rmod__ __pow__ __rpow__
__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __and__ __or__ __xor__ __rand__ __ror__ __rxor__
__iadd__ __isub__ __imul__ __itruediv__ __ifloordiv__ __imod__ __ipow__ __iand__ __ior__ __ixor__"""
_SPECIAL = """bessel_j0 bessel_j1 digamma entr erf erfc erfcx erfinv exp2 expit expm1 gammainc gammaincc gammaln i0 i0e i1
i1e log1p log_ndtr logit multigammaln ndtr ndtri polygamma psi round sinc xlog1py xlogy zeta"""
_ACTIVATIONS = """relu relu6 elu selu celu leaky_relu gelu silu mish hardswish hardtanh hardsigmoid softplus softsign tanhshrink
logsigmoid sigmoid tanh threshold softshrink hardshrink"""
_ROWS = """linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d max_pool1d max_pool2d
max_pool3d avg_pool1d avg_pool2d
avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d layer_norm group_norm
interpolate pad pixel_shuffle pixel_unshuffle unfold fold upsample local_response_norm prelu rms_norm batch_norm
max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices lp_pool1d lp_pool2d channel_shuffle"""
_LOSSES = """cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits
kl_div poisson_nll_loss gaussian_nll_loss hinge_embedding_loss soft_margin_loss multilabel_margin_loss multilabel_soft_margin_loss
multi_margin_loss cosine_embedding_loss margin_ranking_loss triplet_margin_loss triplet_margin_with_distance_loss"""
_ALONG = """softmax log_softmax softmin argmax argmin cumsum cumprod logsumexp sort argsort topk kthvalue median mode
prod std var norm amax amin nanmedian
flip normalize glu count_nonzero aminmax cummax cummin logcumsumexp nansum nanmean"""
_KEEPS = """detach clone requires_grad_ cpu cuda pin_memory share_memory_ alias zero_"""
_CONVERTS = "to type double float half bfloat16 long int short char byte bool type_as"
_MATRICES = """cholesky inv inverse det slogdet logdet solve solve_triangular cholesky_solve eigh eigvalsh svd svdvals qr pinv pinverse
matrix_exp matrix_power"""
_SCATTER = "scatter scatter_add scatter_reduce scatter_ scatter_add_ scatter_reduce_"
_LIKE = "zeros_like ones_like empty_like full_like"
_RANDOM_LIKE = "rand_like randn_like randint_like"
_NEW = "new new_zeros new_ones new_empty new_full new_tensor"
_VALUES = """dtype device is_cuda requires_grad grad_fn layout _version names is_sparse is_quantized is_meta ndim is_cpu is_mps
output_nr itemsize is_nested is_xpu is_mkldnn"""
_METHODS = """dim ndimension is_floating_point is_complex is_signed element_size get_device is_inference
register_post_accumulate_grad_hook
is_pinned record_stream is_same_size storage_offset data_ptr __hash__ is_conj is_neg has_names _is_view backward_hooks"""
_NUMBERS = "item tolist __float__ __int__ __bool__ __index__ __complex__"
_READ_METHODS = """numpy __array__ __contains__ __iter__ __reversed__ unique is_nonzero equal allclose nonzero bincount histc
__reduce_ex__"""


def _of_numbers(rule: Rule) -> Rule:
    """Return `rule` for operations with scalar arguments behind the first operand: partial values among these are reduced first."""

    def reading(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = kwargs
        args, kwargs = read_numbers(args, kwargs, rules.full_tensor, first=1)
        if kwargs is not given and not globals_in((*args, *kwargs.values())):
            return func(*args, **kwargs)  # there were no other global tensors
        return rule(rules, func, args, kwargs)

    return reading


def _named(names: str, *homes: Any) -> list[Any]:
    """Return the functions with these names in `homes`, as ``__torch_function__`` gets them."""
    return [getattr(home, name) for name in names.split() for home in homes if callable(getattr(home, name, None))]


def _properties(names: str) -> list[Any]:
    found: list[Any] = [getattr(torch.Tensor, name, None) for name in names.split()]
    return [prop.__get__ for prop in found if hasattr(prop, "__get__") and not callable(prop)]


def _setters(names: str) -> list[Any]:
    return [getattr(torch.Tensor, name).__set__ for name in names.split()]


_RANDOM_IN_PLACE = frozenset(_named("normal_ uniform_ bernoulli_ random_ exponential_ log_normal_ cauchy_ geometric_", torch.Tensor))


def _table() -> dict[Any, Rule]:
    table: dict[Any, Rule] = {}

    def add(rule: Rule, functions: Iterable[Any]) -> None:
        for function in functions:
            table[function] = rule

    everywhere = (torch, torch.Tensor, F)
    in_place = " ".join(f"{name}_" for name in (_UNARY + " " + _BINARY).split() if not name.startswith("__"))
    add(elementwise, _named(_UNARY + " " + _BINARY + " " + in_place, torch, torch.Tensor))
    add(elementwise, _named(_ACTIVATIONS, F, torch.special))
    add(elementwise, _named(_SPECIAL, torch.special))
    add(elementwise, _properties("real imag"))
    add(_of_numbers(rowwise), [function for function in _named(_ROWS, F, torch) if function is not torch.batch_norm])
    add(_of_numbers(instance_norm), [F.instance_norm])
    add(_of_numbers(lookup), [F.embedding, F.one_hot, F.embedding_bag])
    add(look_up, _named("bucketize isin take searchsorted", torch, torch.Tensor))
    add(select, _named("index_select", torch, torch.Tensor))
    add(paired, _named("grid_sample bilinear max_unpool1d max_unpool2d max_unpool3d", F))
    add(_of_numbers(affine_grid), [F.affine_grid])
    add(_of_numbers(attention), [F.scaled_dot_product_attention])
    add(product, _named("matmul mm bmm mv __matmul__", torch, torch.Tensor))
    add(distances, [torch.cdist])
    add(outer, _named("outer ger", torch, torch.Tensor))
    add(_of_numbers(addmm), _named("addmm addmm_", torch, torch.Tensor))
    add(matrices, _named(_MATRICES, torch.linalg, torch, torch.Tensor))
    add(loss, _named(_LOSSES, F))
    add(_of_numbers(along), _named(_ALONG, *everywhere))
    add(_of_numbers(along), _named("norm vector_norm matrix_norm", torch.linalg))
    add(_of_numbers(along), _named("softmax log_softmax logsumexp", torch.special))
    add(_of_numbers(quantile), _named("quantile nanquantile", torch, torch.Tensor))
    add(_of_numbers(inner), _named(NAMES, torch, torch.Tensor))
    add(_of_numbers(inner), _named(FFT_NAMES, torch.fft))
    add(ctc, [F.ctc_loss])
    add(_of_numbers(all_or_any), _named("all any _is_all_true _is_any_true", torch, torch.Tensor))
    add(_of_numbers(mean), [torch.mean, torch.Tensor.mean])
    add(_of_numbers(total), [torch.sum, torch.Tensor.sum])
    add(extreme, [torch.max, torch.Tensor.max, torch.min, torch.Tensor.min])
    add(shape, [torch.Tensor.size, torch.Tensor.shape.__get__])  # type: ignore[attr-defined]
    add(count, [torch.Tensor.__len__, torch.numel, torch.Tensor.numel, torch.Tensor.nelement])
    add(_of_numbers(reshape), [torch.reshape, torch.Tensor.reshape, torch.Tensor.view])
    add(_of_numbers(flatten), _named("flatten ravel", torch, torch.Tensor))
    add(_of_numbers(unflatten), _named("unflatten", torch, torch.Tensor))
    add(_of_numbers(move), _named("movedim moveaxis", torch, torch.Tensor))
    add(_of_numbers(reshape_in_place), IN_PLACE)
    add(detach_in_place, _named("detach_", torch, torch.Tensor))
    add(_of_numbers(squeeze), [torch.squeeze, torch.Tensor.squeeze])
    add(_of_numbers(unsqueeze), [torch.unsqueeze, torch.Tensor.unsqueeze])
    add(_of_numbers(permute), _named("permute transpose swapaxes swapdims t", torch, torch.Tensor))
    add(permute, _properties("T mT"))
    add(_of_numbers(expand), [torch.Tensor.expand])
    add(as_other, [torch.Tensor.expand_as, torch.Tensor.view_as, torch.Tensor.reshape_as])
    add(broadcast, [torch.broadcast_tensors])
    add(_of_numbers(broadcast), [torch.broadcast_to, torch.Tensor.broadcast_to])
    add(_of_numbers(repeat), [torch.Tensor.repeat, torch.tile, torch.Tensor.tile])
    add(_of_numbers(repeat_interleave), [torch.repeat_interleave, torch.Tensor.repeat_interleave])
    add(einsum, [torch.einsum])
    add(_of_numbers(part_along), _named("select narrow", torch, torch.Tensor))
    add(_of_numbers(index), [torch.Tensor.__getitem__, torch.Tensor.__setitem__])
    add(join, [torch.cat, torch.concat, torch.concatenate, torch.stack])
    add(columns, [torch.hstack, torch.column_stack])
    add(_of_numbers(unpack), _named("chunk split tensor_split unbind", torch, torch.Tensor))
    add(keeps, _named(_KEEPS, torch, torch.Tensor))
    add(keeps, _properties("data"))
    add(contiguous, [torch.Tensor.contiguous])
    add(to_dtype, _named(_CONVERTS, torch.Tensor))
    add(_of_numbers(pairwise), [F.pairwise_distance, F.cosine_similarity, torch.linalg.vecdot])
    add(deepcopy, [torch.Tensor.__deepcopy__])
    add(scatter, _named(_SCATTER, torch, torch.Tensor))
    add(gather, [torch.gather, torch.Tensor.gather, torch.take_along_dim, torch.Tensor.take_along_dim])
    add(constant_like, _named(_LIKE, torch))
    add(set_property, _setters("requires_grad grad data"))
    add(random_like, _named(_RANDOM_LIKE, torch, torch.Tensor))
    add(random_like, _RANDOM_IN_PLACE)
    add(_of_numbers(drawn_by_entry), [*_named("bernoulli multinomial", torch, torch.Tensor), torch.normal])
    add(in_python, [F.gumbel_softmax])
    add(dropout, _named("dropout dropout1d dropout2d dropout3d", F))
    add(new_like, _named(_NEW, torch.Tensor))
    add(local_value, _properties(_VALUES))
    add(local_value, _named(_METHODS, torch.Tensor))
    add(_no, [torch._has_compatible_shallow_copy_type])  # what converts a model then sets `grad` anew, and not the `data` of the old one
    add(layout, _named("stride is_contiguous", torch.Tensor))
    add(local_value, [torch.is_tensor, torch.is_floating_point, torch.is_complex])
    add(in_graph, _properties("is_leaf retains_grad"))
    add(gradient, _properties("grad"))
    add(backward, [torch.Tensor.backward])
    add(grad, [torch.autograd.grad])
    add(read_number, _named(_NUMBERS, torch.Tensor))
    add(read_text, [torch.Tensor.__repr__, torch.Tensor.__format__])
    add(read, _named(_READ_METHODS, torch.Tensor, torch))
    add(unscale, [torch._amp_foreach_non_finite_check_and_unscale_])
    add(read, [getattr(torch, name) for name in dir(torch) if name.startswith("_foreach_")])  # mostly called on gradients, not on batches
    return table


def _no(*_: Any) -> bool:
    return False


REFUSING: frozenset[Any] = frozenset(
    (
        *_named(f"{_MATRICES} index_select take gather take_along_dim multinomial bernoulli {_SCATTER}", torch.linalg, torch, torch.Tensor),
        *_named(f"{_LOSSES} ctc_loss embedding one_hot embedding_bag", F),
        torch.Tensor.__getitem__,
        torch.Tensor.__setitem__,
    )
)
"""Functions that raise for some values, which may be in one rank's part only."""
ON_PARTS: frozenset[Rule] = frozenset(
    (elementwise, keeps, contiguous, to_dtype, shape, count, local_value, layout, in_graph, set_property, _no)
)
"""Rules that also run on tensors that are sharded over all ranks of the run, where batches are sharded over fewer."""
TABLE: Mapping[Any, Rule] = _table()
"""The rule of each function that has one."""
RESHAPING: frozenset[Any] = frozenset((*IN_PLACE, *_named("requires_grad_ detach_ share_memory_", torch, torch.Tensor)))
"""Functions that change a tensor in place, but none of its values."""
