"""A looped model in float64 and what its recurrence is made of, for statements written out by hand."""

import torch

from depthkit.model.walk import Inputs
from tests.models import make_ids, make_model, redraw

LOOPS = 3
FULL = {"inject": "convex", "carry": "mean", "readout": "weighted", "loop_embedding": True}
RANDOM = {"inject": "linear", "state_init": "normal", "out_norm": True}
MIXER = {"kind": "gqa", "num_heads": 2, "num_kv_heads": 1}


def moe(**settings):
    ffn = {"kind": "moe", "num_experts": 4, "hidden_dim": 8, **settings}
    return {"blocks": {"dense": {"mixer": MIXER, "ffn": ffn}}}


def segments(core=None, loops=LOOPS, repeat=2):
    """Prelude, looped core, coda; `core` has the settings under test."""
    return [
        {"name": "prelude", "pattern": ["dense"]},
        {"name": "core", "pattern": ["dense"], "repeat": repeat, "loops": loops, **(core or {})},
        {"name": "coda", "pattern": ["dense"]},
    ]


def looped(core=None, loops=LOOPS, seed=1, std=0.3, **model):
    """Norms compute in fp32, so a float64 model has none."""
    settings = {"norm": "none", "final_norm": False, "dim": 8, "vocab": 11, **model}
    return redraw(make_model(segments=segments(core, loops), **settings), std=std, seed=seed).double()


def ids_for(model):
    return make_ids(2, 5, model.vocab_size)


def once(model, ids, segment, x):
    """One loop of a segment whose blocks have no norm, branch by branch."""
    for visit in model.plan.visits:
        if (visit.key.segment, visit.key.loop) != (segment, 0):
            continue
        block = model.layers[visit.layer]
        for site, ctx in zip((block.mixer, block.ffn), block.prepare(Inputs(ids)), strict=True):
            x = x + site.branch(x, ctx)[0]
    return x


def whole(model, ids, core):
    """Embedding, prelude, `core(e, step, p)`, coda; `step` is one loop, `p` the parameters of the policies."""
    p = dict(model.recurrences["core"].named_parameters())
    e = once(model, ids, "prelude", model.embed(ids))
    return once(model, ids, "coda", core(e, lambda h: once(model, ids, "core", h), p))


def leaves(model, value, skip=("head.weight",)):
    """Gradient of every parameter by name, None where `value` does not depend on it."""
    named = {name: p for name, p in model.named_parameters() if name not in skip}
    found = torch.autograd.grad(value, list(named.values()), allow_unused=True)
    return dict(zip(named, found, strict=True))


def probe(hidden, seed=0):
    """A scalar of `hidden` whose gradient is different at every place."""
    weights = torch.randn(hidden.shape, dtype=hidden.dtype, generator=torch.Generator().manual_seed(seed))
    return (hidden * weights).sum()
