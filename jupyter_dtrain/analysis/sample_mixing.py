"""Find the expressions of a source text that mix samples of a batch, along its first dim. False positives only cost time."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set

from .ast_nodes import name_of
from .batch_sizes import batch_sizes, computing

# fmt: off
_OF_ALL = frozenset((
    "mean", "sum", "std", "var", "std_mean", "var_mean", "norm", "max", "min", "amax", "amin", "aminmax", "median", "quantile", "logsumexp",
    "prod", "all", "any",
))
"""Without a dim, these reduce over all samples."""
_ALONG = frozenset((
    "sort", "argsort", "argmax", "argmin", "topk", "cumsum", "cumprod", "logcumsumexp", "softmax", "log_softmax", "normalize", "roll",
    "flip",
))
_JOINING = frozenset(("cat", "concat", "concatenate", "stack"))
_BUILT_IN = frozenset(("max", "min", "sum", "all", "any"))
# fmt: on
_BEFORE_DIMS = {"norm": 1, "quantile": 1, "roll": 1, "topk": 1}
"""How many arguments come before the dims."""
_MODULES = frozenset(("torch", "F", "functional", "linalg", "np", "numpy"))
_DIMS = frozenset(("dim", "dims", "axis"))
_NO_TENSORS = frozenset(("gc", "json", "logger", "logging", "math", "os", "signal", "sys", "time", "warnings"))
"""Names of modules, and of a logger, that make nothing of tensors."""
# fmt: off
_OF_EACH = frozenset((
    # tensors
    "abs", "add", "addcmul", "arange", "bernoulli", "bernoulli_", "bfloat16", "bool", "byte", "ceil", "chunk", "clamp", "clamp_",
    "clip", "clone", "contiguous", "cos", "cosine_similarity", "cpu", "cuda", "detach", "detach_", "diagonal", "dim", "div", "double",
    "empty", "empty_like", "eq", "erf", "exp", "expand", "expand_as", "expm1", "eye", "fill_", "flatten", "float", "floor", "fmod",
    "full", "full_like", "gather", "ge", "gt", "half", "int", "isfinite", "isinf", "isnan", "le", "lerp", "linspace", "log", "log10",
    "log1p", "log2", "logical_and", "logical_not", "logical_or", "long", "lt", "masked_fill", "masked_fill_", "maximum", "minimum",
    "movedim", "mul", "nan_to_num", "ndimension", "ne", "neg", "new_empty", "new_full", "new_ones", "new_tensor", "new_zeros",
    "normal_", "numel", "one_hot", "ones", "ones_like", "permute", "pow", "rand", "rand_like", "randn", "randn_like", "random_",
    "reciprocal", "relu", "relu_", "remainder", "repeat_interleave", "requires_grad_", "reshape", "round", "rsqrt", "sigmoid", "sign",
    "sin", "sinh", "size", "split", "sqrt", "square", "squeeze", "stride", "sub", "swapaxes", "tan", "tanh", "to", "transpose", "tril",
    "triu", "trunc", "type", "type_as", "unbind", "unflatten", "unfold", "uniform_", "unsqueeze", "view", "view_as", "view_as_complex",
    "view_as_real", "where", "zeros", "zeros_like",
    # functions of layers
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool2d", "avg_pool1d", "avg_pool2d", "bilinear", "bmm", "celu",
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "dropout", "dropout1d", "dropout2d", "elu", "embedding",
    "gelu", "glu", "group_norm", "hardsigmoid", "hardswish", "hardtanh", "instance_norm", "interpolate", "leaky_relu", "linear",
    "logsigmoid", "max_pool1d", "max_pool2d", "mish", "pad", "pixel_shuffle", "prelu", "scaled_dot_product_attention", "selu", "silu",
    "softplus", "softsign", "upsample", "data_parallel",
    # numbers and words
    "append", "choice", "debug", "device", "dict", "enumerate", "error", "extend", "format", "get", "getattr", "hasattr", "info",
    "is_tensor", "isinstance", "items", "join", "keys", "len", "list", "manual_seed", "no_grad", "print", "randint", "random",
    "range", "set", "setattr", "str", "super", "tensor", "time", "tuple", "uniform", "update", "values", "warn", "warning", "write",
    "zip",
))
# fmt: on
"""What goes sample by sample, whatever it is given."""


def mixing(part: ast.AST, called: Set[str] = frozenset(), own: Set[str] = frozenset(), sizes: Set[str] = frozenset()) -> Iterator[ast.AST]:
    """Yield the expressions in a part of a source text that may mix samples of a batch: what is not known to go sample by sample.

    Parameters
    ----------
    part : ast.AST
    called : set of str
        Names of functions, and of modules, that mix samples.
    own : set of str
        Names of functions, and of modules, that are known: those not among `called` do not mix samples.
    sizes : set of str
        Variables that hold the number of samples, beside those that are set in this part.
    """
    yield from computing(part, sizes | batch_sizes(part))
    waiting = [part]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Raise | ast.Assert):
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Call) and (name := name_of(node)) in own | called:
            if name in called:
                yield node
        elif _is_of_samples(node):
            yield node


def dims_of(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what says along which dims an operation goes that mixes samples along theirs, but for constants."""
    if isinstance(node, ast.Call) and (name := name_of(node)) in _OF_ALL | _ALONG:
        positional = [] if name in ("max", "min") else _given(node)[_BEFORE_DIMS.get(name, 0) :]
        dims = [*positional, *(keyword.value for keyword in node.keywords if keyword.arg in _DIMS)]
        yield from (part for part in dims if not isinstance(part, ast.Constant))


def mixes(part: ast.AST, called: Set[str] = frozenset(), own: Set[str] = frozenset()) -> bool:
    """Return whether a part of a source text may mix samples of a batch, as :func:`mixing` finds."""
    return next(mixing(part, called, own), None) is not None


def _is_of_samples(node: ast.AST) -> bool:
    """Return whether an expression may mix samples of a batch, along its first dim."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return _is_of_pairs(node.left, node.right)
    if isinstance(node, ast.Subscript):
        of_tensor = isinstance(node.value, ast.Name) or (isinstance(node.value, ast.Call) and name_of(node.value) != "size")
        return of_tensor and isinstance(node.ctx, ast.Load) and _picks(node.slice)
    name = name_of(node) if isinstance(node, ast.Call) else ""
    if not isinstance(node, ast.Call) or not name or (name in _BUILT_IN and isinstance(node.func, ast.Name)):
        return False
    if _root(node.func) in _NO_TENSORS:
        return False
    if name == "matmul" and len(factors := _factors(node)) == 2:
        return _is_of_pairs(*factors)
    if name not in _OF_ALL | _ALONG | _JOINING:
        return name not in _OF_EACH and not name[0].isupper()
    given = [*_given(node), *(keyword.value for keyword in node.keywords if keyword.arg in _DIMS)]
    constants = [part.value for arg in given for part in ast.walk(arg) if isinstance(part, ast.Constant)]
    along_first = any(value == 0 and value is not False for value in constants)
    return along_first or (name in _OF_ALL and not given) or (name in _JOINING and not constants)


def _root(value: ast.expr) -> str | None:
    while isinstance(value, ast.Attribute):
        value = value.value
    return value.id if isinstance(value, ast.Name) else None


def _is_of_pairs(left: ast.expr, right: ast.expr) -> bool:
    """Return whether a product of matrices is one of samples with samples."""
    return ast.dump(left) in map(ast.dump, _turned(right)) or ast.dump(right) in map(ast.dump, _turned(left))


def _factors(call: ast.Call) -> list[ast.expr]:
    """Return the factors of a call of ``matmul``, as a function or a method."""
    rest = _given(call)
    return [call.args[0], *rest] if len(rest) < len(call.args) else [call.func.value, *rest]  # type: ignore[attr-defined]  # a method


def _given(call: ast.Call) -> list[ast.expr]:
    """Return the arguments of an operation behind its tensor."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    of_module = owner is None or (owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", None)) in _MODULES
    return call.args[of_module:]


def _picks(index: ast.expr) -> bool:
    """Return whether an index picks some of the first dim."""
    first = index.elts[0] if isinstance(index, ast.Tuple) and index.elts else index
    if isinstance(first, ast.Slice):
        return not first.lower is first.upper is first.step is None
    return not isinstance(first, ast.Constant) or (isinstance(first.value, int) and not isinstance(first.value, bool))


def _turned(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the expression of which `node` is the transpose."""
    if isinstance(node, ast.Attribute) and node.attr in ("T", "mT"):
        yield node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("t", "transpose"):
        yield node.func.value
