"""Small runs of depthkit that were never trained, with weights large enough that every layer matters."""

import torch

from depthkit import config as configs
from depthkit.interop import runs
from depthkit.model import Transformer
from tests.models import model_dict


def write_run(folder, data=None, std=0.15, **model):
    """A run at step 0 on bytes; gains and norms are drawn around where they start."""
    raw = {
        "model": model_dict(vocab=257, **model),
        "data": {"tokenizer": "bytes", "sequence_length": 16} | (data or {}),
        "train": {"steps": 4, "batch_size": 2, "lr": 1e-3, "device": "cpu"},
    }
    config = configs.parse(raw)
    made = Transformer(config.model).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for info in made.named_roles():
            drawn = torch.empty(info.parameter.shape).normal_(0, std, generator=generator)
            info.parameter.copy_(
                info.parameter + drawn if info.role in ("norm", "schedule", "bias") else drawn
            )
    runs.write(folder, config, made, {"imported": "a test"})
    return made
