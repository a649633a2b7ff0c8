"""Small models for tests."""

import torch

from depthkit.model import ModelConfig, Transformer


def model_dict(depth=2, loops=1, dim=16, vocab=31, **model):
    """A plain mapping as it would stand under `model:`."""
    dense = {"mixer": {"kind": "gqa", "num_heads": 2, "num_kv_heads": 1}, "ffn": "swiglu"}
    return {
        "dim": dim,
        "vocab_size": vocab,
        "blocks": {"dense": dense},
        "segments": [{"name": "trunk", "pattern": ["dense"], "repeat": depth, "loops": loops}],
        **model,
    }


def make_config(**kwargs):
    return ModelConfig.model_validate(model_dict(**kwargs))


def make_model(seed=0, **kwargs):
    return Transformer(make_config(**kwargs), seed)


def make_ids(batch=2, time=9, vocab=31, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab, (batch, time), generator=generator)


def redraw(model, std=0.15, seed=1):
    """Weights large enough that every layer matters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, std, generator=generator)
    return model
