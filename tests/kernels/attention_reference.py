"""Attention as a loop over heads and positions, and the cases every backend has to meet."""

import torch

from depthkit.kernels.attention import Request

CASES = {
    "causal": {},
    "full": {"causal": False},
    "window": {"window": 3},
    "full-window": {"causal": False, "window": 2},
    "documents": {"packed": True},
    "full-documents": {"causal": False, "packed": True},
    "documents-window": {"packed": True, "window": 2},
}


def make_request(keys=7, queries=None, packed=False, like=None, batch=2, **options):
    """A request over tensors like `like`; packed rows hold documents of different lengths."""
    like = torch.empty(0, 8) if like is None else like
    documents = torch.tensor([[0, 0, 0, 1, 1, 2, 2], [3] * 7]).repeat_interleave(-(-keys // 7), dim=1)[
        :, :keys
    ]
    return Request(
        batch=batch,
        queries=keys if queries is None else queries,
        keys=keys,
        head_dim=like.shape[-1],
        device=like.device,
        dtype=like.dtype,
        documents=documents.to(like.device) if packed else None,
        **options,
    )


def make_tensors(request, heads=6, kv_heads=2, width=5, dtype=torch.float64, device="cpu", grad=True):
    """q `[B, H, T, C]`, k and v `[B, K, S, C]`."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(heads, request.queries), (kv_heads, request.keys), (kv_heads, request.keys)]
    return [
        torch.randn(request.batch, *shape, width, generator=generator, dtype=torch.float64)
        .to(device, dtype)
        .requires_grad_(grad)
        for shape in shapes
    ]


def seen(request, row, query):
    """The keys that a query of a row of the batch sees, one by one."""
    position = request.keys - request.queries + query
    return [
        key
        for key in range(request.keys)
        if (key <= position or not request.causal)
        and (request.window is None or abs(position - key) < request.window)
        and (request.documents is None or request.documents[row, position] == request.documents[row, key])
    ]


def reference(q, k, v, request, scale):
    """Attention one query of one head at a time."""
    out, group = torch.zeros_like(q), q.shape[1] // k.shape[1]
    for row in range(request.batch):
        for query in range(request.queries):
            keys = seen(request, row, query)
            for head in range(q.shape[1]):
                scores = torch.stack(
                    [q[row, head, query] @ k[row, head // group, key] * scale for key in keys]
                )
                out[row, head, query] = scores.softmax(0) @ v[row, head // group, keys]
    return out


def gradients(y, tensors):
    """Gradients of a fixed random functional of y."""
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(y)
    return torch.autograd.grad((y * weight).sum(), tensors)
