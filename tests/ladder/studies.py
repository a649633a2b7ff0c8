"""A study small enough to run in a test, and a branch whose statistics are known exactly."""

from torch import nn

from depthkit.model.ffns.base import DenseConfig
from depthkit.model.linear import linear
from depthkit.model.roles import assign
from tests.models import model_dict


def study_dict(depths=(2, 4), seeds=(0, 1), dim=16, batch=2, length=16, block=None, **change):
    model = {**model_dict(vocab=None, dim=dim), "vocab_size": None}
    if block:
        model["blocks"] = {"dense": {"mixer": block, "ffn": block}}
    return {
        "kind": "init_study",
        "run": {
            "model": model,
            "data": {"sequence_length": length},
            "train": {"steps": 1, "batch_size": batch, "lr": 1e-3, "threads": 1},
        },
        "methods": {"pre_ln": {}, "lns": {"model.regulators": ["lns"]}},
        "depths": list(depths),
        "seeds": list(seeds),
        "workers": 1,
        **change,
    }


class LinearBranch(nn.Module):
    """y = W h with W ~ N(0, s^2 / dim): every token's output has variance s^2 |h|^2 / dim a feature."""

    equation = "y = W h"

    class Config(DenseConfig):
        def matrices(self):
            return 1

        def hidden(self, dim):
            return dim

    def __init__(self, config, dim):
        super().__init__()
        self.map = linear(dim, dim)
        assign(self, down="map.weight")

    def prepare(self, ids, documents, start=0):
        return None

    def forward(self, h, ctx, bank=None):
        return self.map(h), {}
