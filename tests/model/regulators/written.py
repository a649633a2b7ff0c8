"""A regulated transformer written out from its parameters, in float64, with gains given site by site."""

import torch


def written(model, ids, site, outer):
    """The hidden state before the head.

    Args:
        site: `(visit, branch) -> (read, write, skip)`, each a number, a `[1]` or a `[D]` tensor, or for write
            a `[D, D]` matrix.
        outer: gains `final` and `logits`, where there are any.
    """
    w = {name: parameter.double() for name, parameter in model.named_parameters()}
    placement = model.config.placement_of(model.config.segments[0])
    kind = model.config.norm.kind
    x = w["embed.weight"][ids]
    for visit in model.plan.visits:
        for number, (name, branch) in enumerate((("mixer", attention), ("ffn", swiglu))):
            prefix = f"layers.{visit.layer}.{name}."
            read, write, skip = site(visit, number)
            h = normed(x, w, prefix + "before", kind) if placement.before_branch else x
            y = branch(read * h, w, prefix + "branch.")
            y = normed(y, w, prefix + "after_branch", kind) if placement.after_branch else y
            is_matrix = isinstance(write, torch.Tensor) and write.dim() == 2
            x = skip * x + (y @ write.double() if is_matrix else write * y)
            x = normed(x, w, prefix + "after_add", kind) if placement.after_add else x
    x = normed(x, w, "final_norm", kind) if model.config.outer_norm("final_norm") is not None else x
    return x * outer.get("final", 1) * outer.get("logits", 1)


def normed(x, w, name, kind):
    if kind == "none":
        return x
    gain = w.get(f"{name}.weight", 1)
    return gain * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def attention(h, w, prefix):
    """Two query heads of 8 channels on one key/value head."""
    time, head = h.shape[1], 8
    frequency = 1e4 ** (-torch.arange(0, head, 2, dtype=torch.float64) / head)
    angle = torch.outer(torch.arange(time, dtype=torch.float64), frequency)
    turn = torch.polar(torch.ones_like(angle), angle)

    def rope(t):
        turned = torch.complex(t[..., : head // 2], t[..., head // 2 :]) * turn
        return torch.cat([turned.real, turned.imag], -1)

    q = torch.stack([rope(t) for t in (h @ w[prefix + "q.weight"].T).split(head, -1)], 1)
    k = rope(h @ w[prefix + "k.weight"].T)[:, None]
    v = (h @ w[prefix + "v.weight"].T)[:, None]
    future = torch.ones(time, time).triu(1).bool()
    scores = (q @ k.transpose(-1, -2) / head**0.5).masked_fill(future, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2) @ w[prefix + "o.weight"].T


def swiglu(h, w, prefix):
    gate, up = h @ w[prefix + "gate.weight"].T, h @ w[prefix + "up.weight"].T
    return (gate * gate.sigmoid() * up) @ w[prefix + "down.weight"].T
