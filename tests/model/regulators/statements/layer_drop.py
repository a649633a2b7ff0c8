import torch

from depthkit.model.init import stream_seed

VARIANTS = [
    {"rate": 0.5},
    {"rate": 0.5, "growth": "constant", "correction": "none"},
    {"rate": 0.3, "correction": "evaluation", "seed": 5},
]


def site(at):
    keep = 1 - at.settings.rate * (at.l / at.L if at.settings.growth == "linear" else 1)
    if not at.training:
        return 1, (keep if at.settings.correction == "evaluation" else 1), 1
    seed = stream_seed(at.settings.seed, "layer_drop", at.step)
    uniform = torch.rand(at.depth, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    kept = float(uniform[at.index] < keep)
    return 1, kept / (keep if at.settings.correction == "training" else 1), 1
