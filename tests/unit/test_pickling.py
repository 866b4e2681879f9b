"""What the cell finds on the engine is what it would have found in the notebook: structure, identity, numbers, behaviour."""
# ruff: noqa: E501  # tables: one case a line

from __future__ import annotations

import sys
import time
from functools import wraps
from types import CodeType, ModuleType
from typing import Any, ClassVar

import cloudpickle
import numpy as np
import pytest
import torch

from jupyter_dtrain.analysis.code_objects import everything
from jupyter_dtrain.serialization.change_detection import Baseline
from jupyter_dtrain.serialization.pickler import Packed, Packer
from jupyter_dtrain.serialization.stand_ins import stands_for
from jupyter_dtrain.serialization.unpickler import Unpacker
from tests.unit.test_copy_restore import comparable

TORCH = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\ntorch.manual_seed(0)\n"
LINEAR = TORCH + "model = nn.Linear(2, 1).double(); x = torch.ones(4, 2).double()\n"

# A notebook, and an expression (after statements) that has the same value on the engine.
CASES = {
    # what is shared
    "views of one storage": (TORCH + "t = torch.zeros(6); rows = t.view(2, 3); last = rows[1, 2:]", "rows.add_(1); t.tolist(), last.tolist(), rows.stride(), last.storage_offset()"),
    "storages of one tensor each": (TORCH + "a = torch.zeros(3); b = a.clone()", "a.add_(1); b.tolist()"),
    "optimizer's parameters": (LINEAR + "optimizer = torch.optim.SGD(model.parameters(), lr=1.0)", "optimizer.param_groups[0]['params'][0] is model.weight"),
    "scheduler's optimizer": (LINEAR + "optimizer = torch.optim.SGD(model.parameters(), lr=1.0)\nscheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)", "optimizer.step(); scheduler.step(); scheduler.optimizer is optimizer, optimizer.param_groups[0]['lr']"),
    "scheduler alone": (LINEAR + "s = torch.optim.lr_scheduler.ExponentialLR(torch.optim.SGD(model.parameters(), lr=1.0), 0.5)", "s.optimizer.step(); s.step(); s.get_last_lr()"),
    "tied weights": (TORCH + "a = nn.Linear(2, 2); b = nn.Linear(2, 2); b.weight = a.weight; m = nn.ModuleList([a, b])", "m[0].weight is m[1].weight, len(list(m.parameters())), a is m[0]"),
    "a list of 2,000 objects, each in the one before": ("class Node:\n    def __init__(self, next): self.next = next\nlast = None\nfor _ in range(2000): last = Node(last)", "n = 0\nwhile last is not None: last = last.next; n += 1\nn"),
    "one list by two names": ("a = [1]; b = a; d = {'a': a}", "a.append(2); b, d['a'] is b"),
    "a module in a closure": (LINEAR + "def make(m): return lambda v: m(v)\nf = make(model)", "model.weight.data.zero_(); f(x).std().item()"),
    "bound method": (LINEAR + "forward = model.forward", "forward.__self__ is model"),
    "partial": ("from functools import partial\nbase = [1]\ndef f(a, b, *, c): return a, b, c\np = partial(f, base, c=base)", "r = p(2); r, r[0] is base and r[2] is base"),
    "a part of a weight that was changed since": (LINEAR + "part = model.weight.split(1, 1)[0]\nwith torch.no_grad(): model.weight.zero_()", "part.detach().tolist()"),
    "an object's attributes by another name": ("import argparse, dataclasses\nclass A: pass\n@dataclasses.dataclass\nclass B:\n    x: int = 1\na = A(); a.x = 1; own = vars(a); args = argparse.Namespace(lr=1); cfg = vars(args); b = B(); held = [cfg, b.__dict__]", "a.x = 2; own['y'] = 3; cfg['lr'] = 5; held[1]['x'] = 7; own['x'], a.y, args.lr, held[0] is cfg, vars(args) is cfg, b.x"),
    "a dict that is its own attributes": ("class C(dict):\n    def __init__(self, *a, **k): super().__init__(*a, **k); self.__dict__ = self\nc = C(lr=1, n=C(x=2)); d = C()", "c.lr = 2; c['z'] = 1; d.q = 5; c['lr'], c.z, c.__dict__ is c, c.n.x, d, sorted(c)"),
    "views of dicts": ("from types import MappingProxyType\nfrom collections import OrderedDict, UserDict\nd = {'a': 1}; proxy = MappingProxyType(d); keys, values, items = d.keys(), d.values(), d.items()\no = OrderedDict(a=1); okeys = o.keys()\nclass A: x = 1\nof_class = vars(A); nested = MappingProxyType(OrderedDict(k=[1])); of_user = MappingProxyType(UserDict(z=1)); itself = {}; itself['keys'] = itself.keys()", "d['b'] = 2; o['b'] = 2; [*proxy], [*keys], [*values], [*items], [*okeys], type(okeys).__name__, of_class['x'], nested['k'], of_user['z'], [*itself['keys']]"),
    # functions
    "functions of several cells share one set of globals": ("k = 1\ndef f(): return k\ndef g(): return f() + k", "k = 5; f(), g(), f.__globals__ is g.__globals__"),
    "global that only a function's function reads": ("deep = [1]\ndef a(): return b()\ndef b(): return c()\nc = lambda: deep", "a()"),
    "mutual recursion": ("def even(n): return n == 0 or odd(n - 1)\ndef odd(n): return n > 0 and even(n - 1)", "even(10), odd(10)"),
    "nested functions with one variable": ("def pair():\n    n = [0]\n    def up(): n[0] += 1; return n[0]\n    def read(): return n[0]\n    return up, read\nup, read = pair()", "up(); up(); read()"),
    "recursion inside": ("def make():\n    def fact(n): return 1 if n < 2 else n * fact(n - 1)\n    return fact\nf = make()", "f(6)"),
    "lambda with a default": ("k = 3; fs = [lambda x, i=i: x * i + k for i in range(3)]", "[f(2) for f in fs]"),
    "decorated": ("from functools import wraps\ndef twice(f):\n    @wraps(f)\n    def g(*a): return f(f(*a))\n    return g\n@twice\ndef inc(x):\n    'Adds one.'\n    return x + 1", "inc(1), inc.__name__, inc.__doc__, inc.__wrapped__(1)"),
    "cached": ("from functools import cache, lru_cache\n@lru_cache(maxsize=2)\ndef f(x): return x + k\n@cache\ndef g(): return f(1)\nk = 1; g()", "g(), f.cache_parameters()['maxsize'], f(5)"),
    "keyword-only, variadic, annotated": ("def f(a: int, *args: str, b: float = 2.0, **kw) -> tuple: return a, args, b, kw", "f(1, 'x', b=3, c=4), f.__annotations__, f.__kwdefaults__"),
    "generator that has ended": ("g = (i for i in range(3)); total = sum(g)", "type(g).__name__, list(g), next(g, 'nothing')"),
    "generator function": ("def g(n):\n    for i in range(n): yield i\n", "list(g(3))"),
    "what a library's function has made": ("import reprlib\nwithin = reprlib.recursive_repr('…')", "within.__globals__ is vars(reprlib), within.__closure__[0].cell_contents, within(lambda x: 'shown')(1)"),
    "weak references": ("import weakref\nclass A: pass\na = A(); a.me = weakref.ref(a); handlers = [(print, (weakref.ref(a),))]; dead = weakref.ref(A())", "a.me() is a, handlers[0][1][0]() is a, dead()"),
    "a library's wrapper around a function of the notebook": ("import reprlib\n@reprlib.recursive_repr('…')\ndef shown(self): return 'shown'", "shown.__globals__ is vars(reprlib), shown(1), shown.__name__"),
    "standard library's": ("import math, operator; f = math.floor; g = operator.itemgetter(1)", "f(1.5), g([1, 2]), f is math.floor"),
    # classes
    "inheritance": ("class A:\n    def __init__(self, x): self.x = x\n    def f(self): return self.x\nclass B(A):\n    def __init__(self): super().__init__(3)\n    def f(self): return super().f() + 1\nb = B()", "b.f(), isinstance(b, A), B.__mro__[1] is A, B().f(), type(b) is B"),
    "class and static methods, properties": ("from functools import cached_property\nclass A:\n    n = 2\n    @classmethod\n    def make(cls): return cls()\n    @staticmethod\n    def three(): return 3\n    @property\n    def p(self): return self.n\n    @p.setter\n    def p(self, v): self.n = v\n    @cached_property\n    def c(self): return self.p * 10\na = A()", "b = A.make(); b.p = 5; a.p, b.p, A.three(), a.c, b.c"),
    "class that names itself": ("class Node:\n    count = 0\n    def __init__(self): Node.count += 1\nn = Node()", "Node(); Node(); Node.count, type(n) is Node"),
    "dataclasses": ("from dataclasses import dataclass, field, replace\n@dataclass(order=True)\nclass P:\n    x: int\n    tags: list = field(default_factory=list)\n@dataclass(frozen=True, slots=True)\nclass Q(P.__base__):\n    y: float = 1.5\np, q = P(1), Q()", "repr(p), repr(q), p < P(2), p == P(1), repr(replace(q, y=2.0)), hash(q) == hash(Q())"),
    "enum, named tuple, typed dict": ("from enum import Enum, auto\nfrom typing import NamedTuple, TypedDict\nfrom collections import namedtuple\nclass E(Enum):\n    A = auto(); B = auto()\nclass N(NamedTuple):\n    x: int\n    y: int = 2\nM = namedtuple('M', 'a b')\nclass T(TypedDict):\n    k: int\ne, n, m, t = E.B, N(1), M(1, [2]), T(k=1)", "e is E.B, E['A'].value, n, n._replace(y=5).y, isinstance(n, N), m._fields, t"),
    "abstract, generic, metaclass": ("from abc import ABC, abstractmethod\nfrom typing import Generic, TypeVar\nT = TypeVar('T')\nclass A(ABC, Generic[T]):\n    @abstractmethod\n    def f(self) -> T: ...\nclass B(A[int]):\n    def f(self): return 1\nclass M(type):\n    def __len__(cls): return 7\nclass K(metaclass=M): pass\nb = B()", "b.f(), isinstance(b, A), len(K), A.__abstractmethods__ == {'f'}"),
    "slots": ("class A:\n    __slots__ = ('x', '__weakref__')\nclass B(A):\n    __slots__ = ('y',)\nb = B(); b.x = 1", "b.x, hasattr(b, 'y')"),
    "callable, iterable, context manager": ("class A:\n    def __call__(self, x): return x\n    def __iter__(self): return iter('ab')\n    def __enter__(self): return self\n    def __exit__(self, *_): return True\n    def __len__(self): return 0\na = A()", "with a: raise KeyError\na(1), list(a), bool(a)"),
    "own dict and list": ("class D(dict):\n    def __setitem__(self, k, v): super().__setitem__(k, v * 2)\n    def items(self): return []\nclass L(list):\n    def append(self, v): raise TypeError\nd = D(); d['a'] = 1; d.tag = [d]; l = L([1]); l.more = 2", "d['a'], len(d), d.tag[0] is d, list(l), l.more"),
    "attributes passed on": ("class W:\n    def __init__(self, inner): self.inner = inner\n    def __getattr__(self, name): return getattr(self.inner, name)\nclass S(W): __slots__ = ('tag',)\nclass T:\n    __slots__ = ('inner',)\n    __init__, __getattr__ = W.__init__, W.__getattr__\nclass N:\n    def __init__(self, **values): self.__dict__['values'] = values\n    def __getattr__(self, name): return self.values[name]\nclass D(dict): __getattr__, __setattr__ = dict.__getitem__, dict.__setitem__\nclass E(dict): __getattr__ = dict.get\nn = N(x=1); n.up = n; s = S(T(W(n))); s.tag = 3; d = D(n=n); e = E(a=1); e.b = 2", "s.x, s.tag, s.up is n, s.inner.inner.inner is n, d.n is n, e.a, e.b, e.c"),
    "exception": ("class Mine(Exception):\n    def __init__(self, code): super().__init__(f'code {code}'); self.code = code\n    def __reduce__(self): return Mine, (self.code,)\ntry: raise Mine(3)\nexcept Mine as e: error = e", "error.code, str(error), isinstance(error, Mine)"),
    "long chain": ("class Node:\n    def __init__(self, v, next): self.v, self.next = v, next\nhead = None\nfor i in range(150): head = Node(i, head)", "n = 0\nwhile head is not None: n += head.v; head = head.next\nn"),
    # containers
    "containers": ("from collections import *\na = OrderedDict(b=1, a=2); b = defaultdict(list, {'x': [1]}); c = Counter('aab'); d = deque([1, 2], 3); e = ChainMap({'k': 1}, {'j': 2}); f = frozenset([1]); g = (1, [2], {3}); h = bytearray(b'x'); i = range(2, 9, 3); j = slice(1, None)", "list(a), b['y'], b, c.most_common(1), d, e['j'], f, g, h, list(i), 'abc'[j]"),
    "key that is an object": ("class K: pass\nk = K(); d = {k: 1, (k, 1): 2}; s = {k}", "d[k], d[k, 1], k in s"),
    "cycles": ("a = []; a.append(a); d = {}; d['d'] = [d]; class_ = type('C', (), {}); o = class_(); o.me = o", "a[0] is a, d['d'][0] is d, o.me is o"),
    "__getstate__ that takes away from the object": ("class A:\n    def __init__(self): self.n, self.inner = 1, [2]\n    def __getstate__(self): self.inner = None; return self.__dict__.copy()\n    def __setstate__(self, state): self.__dict__.update(state)\na = A(); b = A(); b.up = a", "a.n, a.inner, b.inner, b.up is a"),
    "image that was not read yet": ("import numpy as np; from PIL import Image\nImage.fromarray(np.eye(3, dtype='uint8')).save('image.png'); a, b = Image.open('image.png'), Image.open('image.png')", "np.asarray(a).tolist(), np.asarray(b).sum(), a.size"),
    "plain objects": ("import datetime, decimal, fractions, logging, pathlib, re, uuid\nlog = logging.getLogger('x'); r = re.compile('a+'); t = datetime.timedelta(days=2); dec = decimal.Decimal('1.50'); p = pathlib.Path('a') / 'b'; u = uuid.UUID(int=5)", "log.name, r.findall('caab'), t.days, str(dec), p.name, u.int"),
    "iterator half way": ("it = iter([1, 2, 3]); next(it); e = enumerate('ab'); next(e)", "list(it), list(e)"),
    # arrays
    "arrays": ("import numpy as np\na = [np.arange(6).reshape(2, 3), np.array(1.5), np.zeros((0, 3)), np.asfortranarray(np.eye(2)), np.arange(10)[::3], np.arange(6).reshape(2, 3).T, np.array([True, False]), np.array([1 + 2j]), np.array(['a', 'bcd']), np.array([b'x']), np.array(['2026-01-02', 'NaT'], 'M8[s]'), np.array([5], 'm8[ms]'), np.arange(3, dtype='>i4'), np.float16([1.5]), np.longdouble([0.1])]", "[(str(v.tolist()), v.dtype.str, v.shape, v.flags.writeable) for v in a], a[3].flags.f_contiguous, a[3].flags.c_contiguous"),
    "arrays of records, objects, texts": ("import numpy as np\ns = np.zeros(2, [('a', 'f4'), ('b', 'U3')]); s['b'][1] = 'xy'; o = np.array([1, 'x', None], dtype=object); t = np.array(['a', 'long text'], dtype=np.dtypes.StringDType()); m = np.ma.array([1, 2], mask=[0, 1]); r = np.rec.array([(1, 'a')], names='n,t'); n = np.float32(1.5)", "s.tolist(), s.dtype.names, o.tolist(), t.tolist(), m.tolist(), r.t[0], n.dtype.name"),
    "memory map": ("import numpy as np; m = np.memmap('f.bin', dtype='f4', mode='w+', shape=(3,)); m[:] = 2", "float(m.sum())"),
    "frames": ("import pandas as pd\ndf = pd.DataFrame({'a': [1, 2], 'b': ['x', None], 'c': pd.Categorical(['u', 'v']), 'd': pd.to_datetime(['2026-01-01', None])}, index=['r', 's']); s = df['a']; g = df.groupby('c', observed=True)", "df.astype(str).to_dict(), s.tolist(), g['a'].sum().to_dict(), df.index.tolist()"),
    # tensors
    "kinds of numbers": (TORCH + "kinds = [torch.tensor([0, 1, 2]).to(k) for k in (torch.float64, torch.float32, torch.half, torch.bfloat16, torch.complex64, torch.complex128, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float8_e4m3fn, torch.uint16)]", "[(t.dtype, t.to(torch.complex128).tolist()) for t in kinds]"),
    "shapes and strides": (TORCH + "t = torch.arange(24).reshape(2, 3, 4); ts = [t[:, 1:, ::2], t.permute(2, 0, 1), t.expand(2, 2, 3, 4), torch.tensor(5), torch.zeros(0, 3), torch.zeros(3)[3:], t.to(torch.float32).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last)]", "[(v.tolist(), v.shape, v.stride(), v.storage_offset()) for v in ts]"),
    "layouts": (TORCH + "ts = [torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr(), torch.ones(3, device='meta'), torch.tensor([1 + 2j]).conj(), torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)]", "[(t.layout, t.shape, t.device.type, t.is_conj(), t.is_quantized) for t in ts], ts[0].to_dense().tolist(), ts[1].to_dense().tolist(), ts[3].tolist(), ts[4].dequantize().tolist()"),
    "nested": (TORCH + "n = torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)])", "[t.tolist() for t in n.unbind()]"),
    "gradient and hooks": (TORCH + "w = torch.ones(2, requires_grad=True); (w * 3).sum().backward(); seen = []\nw.register_hook(lambda g: g * 10); w.register_post_accumulate_grad_hook(lambda p: seen.append(p is w))", "before = w.grad.tolist(); (w * 2).sum().backward(); before, w.grad.tolist(), seen, w.is_leaf"),
    "a gradient that a tensor on the way retains": (TORCH + "w = torch.ones(2, requires_grad=True); h = w * 2; h.retain_grad(); h.pow(2).sum().backward(); other = w * 3; other.retain_grad()", "h.grad.tolist(), h.retains_grad, h.is_leaf, other.grad"),
    "parameters and buffers": (TORCH + "class M(nn.Module):\n    def __init__(self):\n        super().__init__(); self.w = nn.Parameter(torch.ones(2)); self.register_buffer('b', torch.zeros(2)); self.register_buffer('t', torch.ones(1), persistent=False); self.ps = nn.ParameterList([torch.ones(1)]); self.alias = self.w\nm = M()", "sorted(m.state_dict()), m.alias is m.w, m.w.requires_grad, m.b.requires_grad, [n for n, _ in m.named_buffers()]"),
    "a tensor of a subclass": (TORCH + "class Mine(torch.Tensor): pass\nt = torch.ones(2).as_subclass(Mine); t.tag = 'x'", "type(t).__name__, isinstance(t, Mine), t.tag, t.sum().item()"),
    "a loss computed elsewhere": (TORCH + "w = torch.ones(2, requires_grad=True); loss = (w * 2).sum(); losses = [loss]", "loss.item(), loss.requires_grad, loss.is_leaf, losses[0] is loss"),
    "tensor made in inference mode": (TORCH + "with torch.inference_mode(): t = torch.ones(2)", "(t + 1).tolist()"),
    "dtype, device, size": (TORCH + "d, v, s, f, i = torch.float16, torch.device('cpu'), torch.Size([2, 3]), torch.finfo(torch.float32), torch.iinfo(torch.int8)", "d is torch.float16, v, s.numel(), f.bits, f.eps, i.max"),
    # modules
    "layers": (TORCH + "x = torch.ones(2, 5, 8); ms = [nn.LSTM(8, 4, batch_first=True), nn.MultiheadAttention(8, 2, batch_first=True), nn.TransformerEncoderLayer(8, 2, batch_first=True).eval(), nn.Embedding(3, 2), nn.Sequential(nn.Flatten(), nn.LazyLinear(2))]", "ms[0](x)[0].sum().item(), ms[1](x, x, x)[0].sum().item(), ms[2](x).sum().item(), ms[3](torch.tensor([1])).tolist(), ms[4](x).shape"),
    "normalized weights": (TORCH + "from torch.nn.utils import parametrizations as P, weight_norm, spectral_norm, prune\nclass Mine(nn.Linear): extra = 5\nms = [P.weight_norm(nn.Linear(2, 2)), P.spectral_norm(nn.Linear(2, 2)).eval(), weight_norm(nn.Linear(2, 2)), P.orthogonal(Mine(2, 2)), prune.l1_unstructured(nn.Linear(2, 2), 'weight', 1)]", "[m(torch.ones(1, 2)).tolist() for m in ms], ms[3].extra, isinstance(ms[3], Mine), sorted(n for n, _ in ms[0].named_parameters())"),
    "a handle of a hook whose module is gone": (TORCH + "handle = nn.Linear(2, 2).register_forward_hook(print)", "handle.remove(); handle.id >= 0"),
    "hooks of modules": (TORCH + "m = nn.Linear(2, 2); seen = {}\nm.register_forward_hook(lambda mod, args, out: seen.update(shape=tuple(out.shape)))\nm.register_full_backward_hook(lambda mod, gi, go: seen.update(back=True))", "m(torch.ones(1, 2)).sum().backward(); seen"),
    "compiled, averaged, scaled": (TORCH + "m = nn.Linear(2, 1); c = torch.compile(m, backend='eager'); a = torch.optim.swa_utils.AveragedModel(m); s = torch.amp.GradScaler('cpu')", "a.update_parameters(m); c._orig_mod is m, type(c).__name__, a.n_averaged.item(), s.get_scale()"),
    "compiled and used": (TORCH + "@torch.compile(backend='eager', fullgraph=True)\ndef double(x): return x * 2\nm = nn.Linear(2, 1); c = torch.compile(m, backend='eager'); nn.init.ones_(m.weight); nn.init.ones_(m.bias); c(double(torch.ones(1, 2)))", "hasattr(double, '_torchdynamo_orig_callable'), c._orig_mod is m, c(double(torch.ones(1, 2))).item()"),
    "autograd function": (TORCH + "class Square(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x): ctx.save_for_backward(x); return x * x\n    @staticmethod\n    def backward(ctx, g): return 5 * ctx.saved_tensors[0] * g", "w = torch.ones(2, requires_grad=True); Square.apply(w).sum().backward(); w.grad.tolist()"),
    "autograd function's apply": (TORCH + "class Square(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x): ctx.save_for_backward(x); return x * x\n    @staticmethod\n    def backward(ctx, g): return 5 * ctx.saved_tensors[0] * g\nsquare = Square.apply", "w = torch.ones(2, requires_grad=True); square(w).sum().backward(); w.grad.tolist(), square == Square.apply"),
    "optimizers with state": (LINEAR + "names = ['Adadelta', 'Adafactor', 'Adagrad', 'Adam', 'AdamW', 'Adamax', 'ASGD', 'NAdam', 'RAdam', 'RMSprop', 'Rprop', 'SGD']\nps = [[p.detach().clone().requires_grad_() for p in model.parameters()] for _ in names]\nos = [getattr(torch.optim, n)(p) for n, p in zip(names, ps)]\ndef go():\n    for p, o in zip(ps, os):\n        o.zero_grad(); F.linear(x, *p).pow(2).sum().backward(); o.step()\n    return [p[0].tolist() for p in ps]\ngo()", "go(); go()"),
    "L-BFGS": (LINEAR + "o = torch.optim.LBFGS(model.parameters())\ndef closure():\n    o.zero_grad(); loss = model(x).pow(2).sum(); loss.backward(); return loss\no.step(closure)", "o.step(closure); model.weight.tolist()"),
    "schedulers": (LINEAR + "from torch.optim import lr_scheduler as S\no = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for _ in range(16)]\nall_ = [S.LambdaLR(o[0], lambda e: 0.5**e), S.MultiplicativeLR(o[1], lambda e: 0.9), S.StepLR(o[2], 2), S.MultiStepLR(o[3], [1, 3]), S.ConstantLR(o[4]), S.LinearLR(o[5]), S.ExponentialLR(o[6], 0.9), S.CosineAnnealingLR(o[7], 5), S.PolynomialLR(o[8], 5), S.ReduceLROnPlateau(o[9], patience=0), S.CyclicLR(o[10], 0.1, 0.2, 2, scale_fn=lambda x: 1 / 2.0 ** (x - 1)), S.OneCycleLR(o[11], 0.3, total_steps=9), S.CosineAnnealingWarmRestarts(o[12], 3), S.SequentialLR(o[13], [S.ConstantLR(o[13], 0.1, 2), S.ExponentialLR(o[13], 0.9)], [2]), S.ChainedScheduler([S.ConstantLR(o[15], 0.1, 2), S.ExponentialLR(o[15], 0.9)])]\ndef go():\n    for q in o: q.step()\n    for s in all_: s.step(1.0) if isinstance(s, S.ReduceLROnPlateau) else s.step()\ngo()", "go(); go(); [q.param_groups[0]['lr'] for q in o]"),
    "kinds of attention": (TORCH + "from torch.nn.attention import SDPBackend, sdpa_kernel\nkinds = [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]", "kinds[0] == SDPBackend.MATH, [kind.name for kind in kinds], type(kinds[1]) is SDPBackend, sdpa_kernel(kinds) is not None"),
    "values whose classes make them of other arguments": ("""
from collections import namedtuple
class Length(float):
    def __new__(cls, value, unit): made = super().__new__(cls, value); made.unit = unit; return made
    def __float__(self): return 99.0
class Path(tuple):
    def __new__(cls, *parts): return super().__new__(cls, parts)
class Word(str):
    def __new__(cls, text, count):
        made = super().__new__(cls, text)
        made.count_ = count
        return made
class Few(frozenset):
    def __new__(cls, first, *rest): return super().__new__(cls, (first, *rest))
class Point(namedtuple("Pair", "x y")):
    def __new__(cls, x): return super().__new__(cls, x, 2 * x)
class Own(int):
    def __new__(cls, value, base): made = super().__new__(cls, value); made.base = base; return made
    def __getnewargs__(self): return int(self), self.base
class Turn(complex):
    def __new__(cls, angle, *, size): return super().__new__(cls, 0, size)
length, path, word, few, point, own, turn = Length(1.5, "m"), Path(1, [2]), Word("a", 3), Few(1, 2), Point(4), Own(5, 6), Turn(0, size=2)
""", "length + 0, length.unit, path == (1, [2]), word, word.count_, sorted(few), point, own, own.base, turn + 0, [type(v).__name__ for v in (length, path, word, few, point, own, turn)]"),
    "objects whose classes make them of arguments": (TORCH + "class Average(nn.Module):\n    def __new__(cls, model, *args): return super().__new__(cls)\n    def __init__(self, model, rate): super().__init__(); self.model, self.rate = model, rate\nclass Pair:\n    def __new__(cls, a, b): return object.__new__(cls)\n    def __init__(self, a, b): self.a, self.b = a, b\naverage, pair = Average(nn.Linear(2, 1), 0.5), Pair(1, 2)", "average.model.weight.tolist(), average.rate, [n for n, _ in average.named_parameters()], pair.a, pair.b"),
    "a transform that holds its inverse": (TORCH + "from torch.distributions import AffineTransform\nclass Both(AffineTransform):\n    pass\nboth = Both(1.0, 2.0); both.back = both.inv; other = both.inv", "both.back(torch.tensor(3.0)).item(), both.back.inv is both, both.back is other, other(both(torch.tensor(5.0))).item()"),
    "inverse of a transform": (TORCH + "from torch.distributions import SigmoidTransform, TransformedDistribution, Uniform\ninverse = SigmoidTransform().inv; logistic = TransformedDistribution(Uniform(0.0, 1.0), [inverse])", "inverse(torch.tensor(0.3)).item(), logistic.log_prob(torch.tensor(0.4)).item(), logistic.transforms[0] is inverse, inverse.inv.inv is inverse"),
    # data
    "loader": (TORCH + "from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler\ng = torch.Generator().manual_seed(3); loader = DataLoader(TensorDataset(torch.arange(10)), batch_size=3, sampler=WeightedRandomSampler([1.0] * 9 + [5], 10, generator=g), collate_fn=lambda items: torch.stack([i[0] for i in items]), generator=g)", "[b.tolist() for b in loader], loader.sampler.generator is loader.generator, len(loader)"),
    "loader whose workers run": (TORCH + "from torch.utils.data import DataLoader\nloader = DataLoader(list(range(6)), batch_size=4, num_workers=1, persistent_workers=True, multiprocessing_context='fork')\nfirst = [b.tolist() for b in loader]", "first, [b.tolist() for b in loader]"),
    "data sets": (TORCH + "from torch.utils.data import *\nbase = TensorDataset(torch.arange(8)); a, b = random_split(base, [5, 3], generator=torch.Generator().manual_seed(0)); c = ConcatDataset([a, Subset(b, [0])])\nclass Stream(IterableDataset):\n    def __iter__(self): return iter(range(3))\ns = Stream()", "[i[0].item() for i in c], a.dataset is b.dataset, list(s)"),
    "generators": (TORCH + "import random, numpy as np\ng = torch.Generator().manual_seed(1); torch.rand(2, generator=g); n = np.random.default_rng(2); n.random(); r = np.random.RandomState(3); r.rand(); p = random.Random(4); p.gauss(0, 1)", "torch.rand(1, generator=g).item(), n.random(), r.rand(), p.gauss(0, 1), p.random()"),
    "what modules draw from": (TORCH + "import random, numpy as np\nfrom random import choice, random as draw, seed\nfrom numpy.random import randn\nfrom torch import default_generator", "seed(3); np.random.seed(3); [draw(), random.random(), choice(range(99)), float(randn()), np.random.rand(), default_generator is torch.default_generator]"),
    "what a process has one of": ("import os, matplotlib\nfrom os import environ\nfrom matplotlib import rcParams", "environ is os.environ, rcParams is matplotlib.rcParams"),
    # modules of Python
    "submodules imported somewhere": ("import xml.etree.ElementTree, concurrent.futures", "xml.etree.ElementTree.fromstring('<a/>').tag, concurrent.futures.Future.__name__"),
    "module under another name": ("import os.path as p; import numpy.linalg as la; from importlib import import_module; j = import_module('json')", "p.basename('a/b'), la.norm([3, 4]).item(), j.dumps(1)"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # of PyTorch and pandas, about old and new ways to do things
@pytest.mark.parametrize("name", CASES)
def test_the_engine_has_what_the_notebook_has(name, notebook, other_notebook):
    setup, expression = CASES[name]
    source = expression if "\n" in expression else "\n".join(expression.rsplit("; ", 1))
    other_notebook.plain(setup)
    expected = comparable(other_notebook.plain(source))
    notebook.plain(setup)
    assert comparable(notebook.distribute(source)) == expected
    assert expected is not None


# -- the packer itself -----------------------------------------------------------------------------------------------


def sent(value: object, **options: Any) -> Any:
    """Return a copy of `value` by way of a packer, whose buffers are its own."""
    namespace: dict[str, Any] = {}
    packer = Packer(namespace=namespace, **options)
    packer.dump(value)
    packed = packer.packed()
    own = [memoryview(bytearray(buffer)) for buffer in packed.buffers]
    return Unpacker(Packed(packed.stream, packed.leaves, own), namespace=namespace, known=options.get("known", ())).load()


def test_bytes_are_set_aside_and_the_pickle_stays_small():
    packer = Packer(namespace={})
    tensor, array = torch.arange(100_000), np.arange(100_000)
    packer.dump({"t": tensor, "half": tensor[:50_000], "a": array, "again": [array]})
    packed = packer.packed()
    assert len(packed.stream) < 2000
    assert [buffer.nbytes for buffer in packed.buffers] == [800_000, 800_000]
    assert bytes(packed.buffers[0]) == bytes(packed.buffers[1]) == array.tobytes()


class FakeStream:
    """A stream of a GPU, which cannot be pickled."""

    def __init__(self, priority: int = 0, cuda_stream: int = 1) -> None:
        self.priority, self.cuda_stream = priority, cuda_stream

    def __reduce_ex__(self, _protocol):
        raise TypeError("cannot pickle 'Stream' object")


class FakeEvent(FakeStream):
    """An event of a GPU."""

    def __init__(self, *, enable_timing: bool) -> None:
        self.enable_timing = enable_timing


def test_streams_and_events_of_a_gpu_are_new_ones_there(monkeypatch):
    default = FakeStream(cuda_stream=0)
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda: default)
    side = FakeStream(-1)
    found = sent({"side": side, "again": [side], "default": FakeStream(cuda_stream=0), "event": FakeEvent(enable_timing=False)})
    assert found["side"] is found["again"][0] is not side
    assert found["side"].priority == -1
    assert found["default"] is default
    assert found["event"].enable_timing


def test_a_copy_shares_no_memory_with_the_original():
    original: dict[str, Any] = {"t": torch.zeros(3), "a": np.zeros(3)}
    copy = sent(original)
    copy["t"] += 1
    copy["a"] += 1
    assert original["t"].tolist() == [0, 0, 0]
    assert original["a"].tolist() == [0, 0, 0]
    assert copy["t"].tolist() == copy["a"].tolist() == [1, 1, 1]


def test_what_is_sent_can_be_resized_on_both_sides():
    notebooks = torch.zeros(3)
    copy = sent(notebooks)
    assert Baseline([copy]).changed() == {}
    for tensor in (notebooks, copy):
        tensor.resize_(1000).fill_(2)
        assert tensor.sum() == 2000


def test_known_objects_are_references():
    model, other = torch.nn.Linear(1000, 1000), {"big": np.zeros(100_000)}
    packer = Packer(namespace={}, known=[model, other, model.weight])
    packer.dump([other, model.weight, model, [other]])
    packed = packer.packed()
    assert packed.buffers == []
    here, there, weight = object(), object(), object()
    assert Unpacker(packed, namespace={}, known=[here, there, weight]).load() == [there, weight, here, [there]]


def test_functions_get_the_readers_globals():
    source: dict[str, Any] = {"__name__": "__main__"}
    exec("k = 1\ndef f():\n    return k\n", source)
    packer = Packer(namespace=source)
    packer.dump(source["f"])
    target: dict[str, Any] = {"__name__": "__main__", "more": 2}
    function = Unpacker(packer.packed(), namespace=target).load()
    assert function.__globals__ is target
    assert target["k"] == 1
    target["k"] = 5
    assert function() == 5


def without_file(code):
    return CodeType, cloudpickle.cloudpickle._code_reduce(code.replace(co_filename="<dynamic-code>"))[1]


@pytest.mark.parametrize("reduce_code", [cloudpickle.cloudpickle._code_reduce, without_file], ids=["as installed", "as cloudpickle 3.1.3"])
def test_functions_keep_the_names_of_their_files(monkeypatch, reduce_code):
    monkeypatch.setitem(cloudpickle.Pickler.dispatch_table, CodeType, reduce_code)
    namespace: dict[str, Any] = {}
    text = (
        "def outer(x):\n    def inner():\n        return x\n    return inner\nclass Model:\n    def forward(self): return [1 for _ in 'a']"
    )
    exec(compile(text, "/tmp/ipykernel_7/1.py", "exec"), namespace)
    received = sent({name: namespace[name] for name in ("outer", "Model")})
    for function in (received["outer"], received["outer"](1), received["Model"].forward):
        assert {code.co_filename for code in everything(function.__code__)} == {"/tmp/ipykernel_7/1.py"}
    assert received["outer"](1)() == 1 and received["Model"]().forward() == [1]


def test_several_graphs_share_their_objects():
    packer = Packer(namespace={})
    shared = [torch.zeros(2), {"a": 1}]
    packer.dump({"x": shared})
    packer.dump([shared[1], shared[0], shared])
    unpacker = Unpacker(packer.packed(), namespace={})
    first, second = unpacker.load(), unpacker.load()
    assert second[2] is first["x"]
    assert second[0] is first["x"][1]
    assert second[1] is first["x"][0]


def test_what_can_change_is_seen_once_each():
    inner = [1]
    value = {"a": inner, "b": inner, "c": (inner, "text", 5, frozenset([1])), "t": torch.zeros(1)}
    packer = Packer(namespace={})
    packer.dump(value)
    assert [obj for obj in packer.seen if obj is inner] == [inner]
    assert value in packer.seen
    assert not any(isinstance(obj, str | int | tuple | frozenset) for obj in packer.seen)


def test_devices_are_mapped_by_the_reader():
    packer = Packer(namespace={})
    packer.dump(torch.ones(2))
    asked: list[str] = []

    def device_for(kind: str) -> torch.device:
        asked.append(kind)
        return torch.device("meta")

    assert Unpacker(packer.packed(), namespace={}, device_for=device_for).load().device.type == "meta"
    assert asked == ["cpu"]


@pytest.mark.parametrize(
    "make", [lambda n: [(i, str(i)) for i in range(n)], lambda n: [[i] for i in range(n)], lambda n: [{"k": i} for i in range(n)]]
)
def test_time_grows_with_the_size_and_not_faster(make):
    """The time for ten times as many objects, over that for one: about 10, and 100 where each looks at all others."""

    def seconds(value: object) -> float:
        best = float("inf")
        for _ in range(2):
            packer = Packer(namespace={})
            start = time.process_time()
            packer.dump(value)
            best = min(best, time.process_time() - start)
        return best

    assert seconds(make(100_000)) / seconds(make(10_000)) < 40


def test_no_class_of_others_is_taken_for_one_that_stands_for_another():
    class Meta(type):
        __module__ = property(lambda self: "jupyter_dtrain.engine")

    assert stands_for(Meta("Theirs", (), {"__wrapped__": int})) is None
    assert stands_for(wraps(len)(lambda: 0)) is None


def test_models_of_transformers_say_anew_what_they_can_record(monkeypatch):
    models, recording = ModuleType("transformers.modeling_utils"), ModuleType("transformers.utils.output_capturing")
    registry: dict[object, object] = {}
    vars(models)["PreTrainedModel"], vars(recording)["_CAN_RECORD_REGISTRY"] = Pretrained, registry
    for module in (ModuleType("transformers"), models, recording):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    received = sent(torch.nn.Sequential(Pretrained()))
    assert list(registry.items()) == [(received[0], {"hidden_states": int})]
    assert received[0].bias.tolist() == [0.0, 0.0]


class Pretrained(torch.nn.Module):
    _can_record_outputs: ClassVar = {"hidden_states": int}

    def __init__(self) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(2))
