"""Functions of torch that contracts are derived from in tests, with example inputs."""

import torch
import torch.nn.functional as F


def drawn(*shapes):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def labels(n, classes):
    return torch.randint(0, classes, (n,), generator=torch.Generator().manual_seed(0))


def layer_norm(x, weight, bias):
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


def group_norm(x, weight, bias):
    return F.group_norm(x, 4, weight, bias)


def batch_norm(x):
    return F.batch_norm(x, None, None, training=True)


def rms_norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def causal(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def mlp(x, w1, b1, w2, b2):
    return F.gelu(x @ w1 + b1) @ w2 + b2


def gated(x, gate, up):
    return F.silu(x @ gate) * (x @ up)


def recurrent(x, w):
    state = torch.zeros(x.shape[0], w.shape[0], dtype=x.dtype)
    for step in x.unbind(1):
        state = torch.tanh(state @ w + step[:, None])
    return state


def summed_into(x, source):
    return torch.index_add(x, 0, torch.arange(64) % 50, source, alpha=-0.7)


def gradient(x):
    with torch.enable_grad():
        x = x.detach().clone().requires_grad_()
        (torch.softmax(x, -1) ** 2).sum().backward()
    return x.grad


def index_add(x):
    return torch.zeros(10, 40, dtype=x.dtype).index_add_(0, torch.arange(64) % 10, x)


def turned(x, angle):
    """A rotary embedding by complex numbers."""
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)


def filtered(x, weight):
    """Channels mixed in a band of frequencies, by a complex weight."""
    band = torch.fft.rfft(x)[..., : weight.shape[2]]
    return torch.fft.irfft(torch.einsum("bci,coi->boi", band, torch.view_as_complex(weight)), n=x.shape[-1])


# name -> (function, example inputs): one of each class of rules, and what models are made of
FUNCTIONS = {
    "add": (lambda a, b: a * 0.3 + b / 1.7, drawn((12, 40), (12, 40))),
    "exp": (lambda x: torch.exp(x), drawn((12, 40))),
    "tanh": (lambda x: torch.tanh(x), drawn((12, 40))),
    "gelu": (F.gelu, drawn((12, 40))),
    "silu": (F.silu, drawn((12, 40))),
    "softplus": (F.softplus, drawn((12, 40))),
    "sum": (lambda x: x.sum(-1), drawn((12, 40))),
    "mean": (lambda x: x.mean((0, 1)), drawn((12, 40, 3))),
    "cumsum": (lambda x: x.cumsum(-1), drawn((12, 40))),
    "prod": (lambda x: x.prod(-1), drawn((12, 40))),
    "norm": (lambda x: torch.linalg.vector_norm(x, dim=-1), drawn((12, 40))),
    "var": (lambda x: x.var(-1), drawn((12, 40))),
    "std_mean": (lambda x: torch.std_mean(x, -1, correction=0), drawn((12, 40))),
    "matmul": (lambda a, b: a @ b, drawn((12, 40), (40, 9))),
    "bmm": (lambda a, b: a @ b, drawn((3, 12, 20), (3, 20, 9))),
    "linear": (F.linear, drawn((12, 40), (9, 40), (9,))),
    "bilinear": (F.bilinear, drawn((12, 20), (12, 16), (9, 20, 16), (9,))),
    "conv2d": (F.conv2d, drawn((2, 8, 10, 10), (4, 8, 3, 3), (4,))),
    "conv_transpose": (F.conv_transpose2d, drawn((2, 4, 6, 6), (4, 3, 3, 3))),
    "avg_pool": (lambda x: F.avg_pool2d(x, 3), drawn((2, 3, 10, 10))),
    "max_pool": (lambda x: F.max_pool2d(x * 0.3, 3), drawn((2, 3, 10, 10))),
    "trilinear": (lambda x: F.interpolate(x, size=(5, 11, 9), mode="trilinear"), drawn((2, 3, 7, 6, 5))),
    "antialias": (lambda x: F.interpolate(x, size=(4, 9), mode="bicubic", antialias=True), drawn((2, 3, 6, 5))),
    "grid_2d": (lambda x, at: F.grid_sample(x, at, align_corners=False), drawn((2, 3, 5, 6), (2, 7, 8, 2))),
    "grid_3d": (lambda x, at: F.grid_sample(x, at, align_corners=False), drawn((2, 3, 5, 6, 4), (2, 7, 8, 5, 3))),
    "softmax": (lambda x: torch.softmax(x, -1), drawn((12, 40))),
    "log_softmax": (lambda x: torch.log_softmax(x, -1), drawn((12, 40))),
    "logsumexp": (lambda x: torch.logsumexp(x, -1), drawn((12, 40))),
    "layer_norm": (layer_norm, drawn((12, 40), (40,), (40,))),
    "group_norm": (group_norm, drawn((2, 8, 5, 5), (8,), (8,))),
    "batch_norm": (batch_norm, drawn((6, 5, 4, 4))),
    "rms_norm": (rms_norm, drawn((12, 40), (40,))),
    "attention": (causal, drawn((2, 3, 20, 16), (2, 3, 20, 16), (2, 3, 20, 16))),
    "mlp": (mlp, drawn((10, 32), (32, 48), (48,), (48, 16), (16,))),
    "gated": (gated, drawn((10, 32), (32, 48), (32, 48))),
    "cross_entropy": (F.cross_entropy, [*drawn((12, 40)), labels(12, 40)]),
    "index_add": (
        lambda x: torch.zeros(10, 40, dtype=x.dtype).index_add_(0, torch.arange(64) % 10, x),
        drawn((64, 40)),
    ),
    "index_add_scaled": (summed_into, drawn((50, 40), (64, 40))),
    "distances": (lambda a, b: torch.cdist(a, b, p=1.0), drawn((20, 40), (15, 40))),
    "solve": (lambda a, b: torch.linalg.solve(a + 8 * torch.eye(12, dtype=a.dtype), b), drawn((12, 12), (12, 3))),
    "recurrent": (recurrent, drawn((4, 12), (8, 8))),
    "gradient": (gradient, drawn((12, 40))),
    "spectrum": (lambda x: torch.fft.rfft2(x).abs(), drawn((3, 24, 20))),
    "filtered": (filtered, drawn((2, 3, 32), (3, 5, 8, 2))),
    "turned": (turned, drawn((2, 10, 16), (10, 8))),
}
