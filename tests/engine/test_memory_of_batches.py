"""What shares memory with a batch shares it on all ranks: views, samples, arrays of NumPy's, what the cell keeps of them."""

from __future__ import annotations

import pytest

from tests.conftest import one_of
from tests.engine.ranks import Ranks
from tests.engine.test_data_attribute import SETUP, assert_as_in_one_process

ARRAYS = {
    "numpy then inplace": """
for x, y in loader:
    a = x.numpy(); x.mul_(2); seen.append(a.tolist()); read(x)
""",
    "numpy written": """
for x, y in loader:
    a = x.numpy(); a *= 2; read(x); step(x, y)
""",
    "asarray written": """
for x, y in loader:
    read(x); a = np.asarray(x); a[:, 0] += 1; read(x); step(x, y)
""",
    "as_tensor": """
for x, y in loader:
    read(x); z = torch.as_tensor(x.numpy()); z.add_(1); read(x, z); x.zero_(); read(z)
""",
    "from_numpy": """
for x, y in loader:
    z = torch.from_numpy(x.numpy()); x.add_(2); read(z); z.mul_(2); read(x); step(x, y)
""",
    "numpy row": """
for x, y in loader:
    a = x.numpy()
    for i in range(len(a)): a[i] = a[i] / a[i].sum()
    read(x); step(x, y)
""",
    "arrays of samples": """
def scaled(image): a = image.numpy(); a /= a.max()
for x, y in loader:
    for i in range(len(x)): scaled(x[i])
    read(x); step(x, y)
""",
    "arrays of rows": """
def scaled(image): image.numpy()[:] *= 0.5
for x, y in loader:
    for image in x: scaled(image)
    step(x, y); read(x)
""",
    "an array of the last sample": """
for x, y in loader: read(x[-1]); a = np.asarray(x[-1]); a[1] = 4; step(x, y); read(x)
""",
    "an array in inference mode": """
for x, y in loader:
    with torch.inference_mode(): x.numpy()[0] = 1.0
    read(x); step(x, y)
""",
    "samples in inference mode": """
for x, y in loader:
    with torch.inference_mode():
        for image in x: image.mul_(0.5)
        v = x[0]; v += 1
    v.add_(1); read(x); step(x, y)
""",
    "a model that writes into its input": """
inplace = nn.Sequential(nn.Hardtanh(0.2, 0.6, inplace=True), model)
for x, y in loader:
    a = x.numpy(); b = a.copy()
    with torch.no_grad(): inplace(x)
    kept.append(x + 0); read(x); seen.append(b.tolist())
""",
}
VIEWS = {
    "row view": """
for x, y in loader:
    read(x); v = x[0]; x.mul_(2); read(v); v.zero_(); read(x); step(x, y)
""",
    "view flat": """
for x, y in loader:
    read(x); v = x.view(-1); v[4] = 9; read(x, v); x.add_(1); read(v)
""",
    "view last": """
for x, y in loader:
    read(x); v = x.view(len(x), 3, 1); v[:, 1] = 9; read(x, v); x.add_(1); read(v)
""",
    "unbind": """
for x, y in loader:
    r = x.unbind(0); read(x); r[0].zero_(); read(x, *r); step(x, y)
""",
    "list": """
for x, y in loader:
    r = list(x); r[1] += 1; read(x); x.neg_(); read(*r)
""",
    "t": """
for x, y in loader:
    t = x.t(); read(t); t[0] = 1; read(x, t); x[:, 1] = 5; read(t)
""",
    "detach": """
for x, y in loader:
    d = x.detach(); read(d, x); d.add_(1); read(x); x.sub_(0.5); read(d)
""",
    "mask": """
for x, y in loader:
    read(x); x[x > 0.5] = 0; read(x); x[:, 0] = 7; read(x); x[[0, 2]] = -1; read(x); step(x, y)
""",
    "buffer": """
for x, y in loader:
    buf = torch.zeros(8, 3); buf[:len(x)] = x; x.mul_(3); read(buf, x); buf += 1; read(buf, x); step(buf[:len(x)], y)
""",
    "same objects": """
for x, y in loader:
    z = x.contiguous(); read(z); z.add_(1); w = x.to(torch.float64); w.mul_(2); read(x); u = x.double(); u.sub_(1); read(x, z, w, u)
""",
    "reshape": """
for x, y in loader:
    read(x); z = x.reshape(len(x), 1, 3); z += 1; read(x); f = x.flatten(); f *= 2; read(x, f, z)
""",
    "fills": """
for x, y in loader:
    read(x); x.copy_(x * 2); read(x); x.index_fill_(1, torch.tensor([1]), 3.0); read(x); x.fill_(0.25); read(x); step(x, y)
""",
    "chunks": """
for x, y in loader:
    a, b = x[:, :1], x[:, 1:]; read(a, b); x.mul_(2); read(a, b); b.add_(1); read(x); a.copy_(b[:, :1]); read(x)
""",
    "halves": """
for x, y in loader:
    h = x.split(4); read(*h); h[0].mul_(2); read(x); x.add_(1); read(*h); step(x, y)
""",
    "outputs kept": """
for x, y in loader:
    o = model(x).detach(); kept.append(o); read(o); o.mul_(2); read(kept[-1]); kept[0].add_(1)
""",
    "loss detached": """
for x, y in loader:
    l = F.mse_loss(model(x), y); d = l.detach(); seen.append(d.item()); d.mul_(2); seen += [d.item(), l.item()]; kept.append(d)
""",
    "sum acc": """
for x, y in loader:
    t = x.sum(0); read(t); t += 1; read(t); u = t; u /= 2; read(t, u); kept.append(t)
""",
    "diag view": """
for x, y in loader:
    g = x.diagonal(); read(g); g.zero_(); read(x)
""",
    "select put": """
for x, y in loader:
    read(x); s = x.select(1, 2); s.fill_(4); n = x.narrow(1, 0, 2); n.mul_(2); read(x, s, n)
""",
    "expand": """
for x, y in loader:
    e = y.expand(-1, 3); read(e); y.mul_(2); read(e); step(x, y)
""",
    "real alias loop": """
for x, y in loader:
    for i, r in enumerate(x):
        r[0] = i
        seen.append(x.sum().item())
    step(x, y)
""",
    "kept over batches": """
for x, y in loader:
    kept.append(x[0]); kept.append(x); [k.add_(1) for k in kept]; read(*kept)
""",
    "in dict": """
for x, y in loader:
    b = {'x': x, 'v': x[:, 0]}; read(b['v']); b['x'] += 1; read(b['v']); b['v'] *= 0; read(x)
""",
    "tolist then item assign": """
for x, y in loader:
    seen.append(x.tolist()); x[1, 2] = 100.0; seen.append(x[1].tolist()); x[1] = torch.tensor([1., 2., 3.]); read(x); step(x, y)
""",
    "out=": """
for x, y in loader:
    read(x); torch.add(x, 1, out=x); read(x); torch.mul(x, y, out=x); read(x)
""",
    "swap": """
for x, y in loader:
    read(x, y); x[:, :1], y[:] = y.clone(), x[:, :1].clone(); read(x, y); step(x, y)
""",
    "sort inplace": """
for x, y in loader:
    read(x); x.copy_(x.sort(1).values); read(x); v, i = x.max(1); v.zero_(); read(x, v)
""",
    "storage": """
for x, y in loader:
    read(x); v = x.as_strided((3,), (1,), 0); read(v); x.mul_(2); read(v)
""",
}
IN_PLACE = {
    "requires_grad_": """
for x, y in loader:
    read(x); x.requires_grad_(); F.mse_loss(model(x), y).backward(); read(x.grad); seen.append(x.requires_grad)
""",
    "requires_grad=": """
for x, y in loader:
    read(x); x.requires_grad = True; F.mse_loss(model(x), y).backward(); read(x.grad)
""",
    "requires numpy": """
for x, y in loader:
    a = x.numpy(); x.requires_grad_(True); l = F.mse_loss(model(x), y); g, = torch.autograd.grad(l, x); read(g); seen.append(a.tolist())
""",
    "fgsm": """
for x, y in loader:
    seen.append(x.numpy().sum().item()); x.requires_grad = True; F.mse_loss(model(x), y).backward()
    adv = (x + 0.1 * x.grad.sign()).clamp(0, 1).detach(); read(adv); step(adv, y)
""",
    "unsqueeze_": """
for x, y in loader:
    read(x); x.unsqueeze_(1); read(x); x.squeeze_(1); read(x); step(x, y)
""",
    "unsqueeze_ unread": """
for x, y in loader:
    x.unsqueeze_(1); read(x); x.squeeze_(1); step(x, y)
""",
    "t_": """
for x, y in loader:
    read(x); x.t_(); read(x); x.t_(); step(x, y)
""",
    "transpose_": """
for x, y in loader:
    read(x); x.transpose_(0, 1); read(x); x.swapaxes_(0, 1); step(x, y)
""",
    "detach_": """
for x, y in loader:
    o = model(x); o.detach_(); read(o); kept.append(o)
""",
    "out squeeze_": """
for x, y in loader:
    o = model(x).detach(); read(o); o.squeeze_(1); read(o); kept.append(o)
""",
    "zero_grad array": """
for x, y in loader:
    x.requires_grad_(); F.mse_loss(model(x), y).backward(); read(x.grad); x.grad.zero_(); F.l1_loss(model(x), y).backward(); read(x.grad)
""",
    "set_": """
for x, y in loader:
    read(x); x.set_(y.expand(-1, 3).contiguous()); read(x); step(x, y)
""",
    "swap": """
for x, y in loader:
    read(x, y); torch.utils.swap_tensors(x, y); read(x, y)
""",
    "normal_": """
for x, y in loader:
    read(x); x.normal_(); read(x); x.uniform_(); read(x); x.bernoulli_(0.5); read(x); step(x, y)
""",
    "sub type": """
for x, y in loader:
    read(x); x = x.half().double(); read(x); x.mul_(2); read(x); step(x, y)
""",
    "a sample of another shape": """
for x, y in loader:
    v = x[0]; read(x); x.unsqueeze_(1); v.mul_(2); read(x); x.add_(1); read(v); x.squeeze_(1); step(x, y)
""",
    "hidden.detach_()": """
for x, y in loader:
    h = torch.tanh(model[0](x)); read(h.detach()); F.mse_loss(model[2](h), y).backward()
    h.detach_(); seen.append(h.requires_grad); kept.append(h)
""",
}


@pytest.fixture(scope="module")
def ranks():
    with Ranks(3) as ranks:
        yield ranks


def check(ranks, cell):
    assert_as_in_one_process(ranks, cell, setup=f"{SETUP}import numpy as np\n")


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_a_batch(ranks, name):
    check(ranks, ARRAYS[name])


@pytest.mark.parametrize("name", one_of(3, VIEWS))
def test_views_of_a_batch(ranks, name):
    check(ranks, VIEWS[name])


@pytest.mark.parametrize("name", one_of(2, IN_PLACE))
def test_what_changes_a_batch_in_place(ranks, name):
    check(ranks, IN_PLACE[name])
