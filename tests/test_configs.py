"""Every shipped config is complete: it validates, its model builds at its real size, and ladders resolve."""

from functools import cache
from pathlib import Path

import pytest
import torch

from depthkit import config as c
from depthkit.model import Transformer, account

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "configs").rglob("*.yaml"))


load = cache(c.load)


@cache
def runs(path):
    document = load(path)
    if document.kind == "run":
        return [document]
    # Of rungs that differ in these alone, the first is enough.
    alike = {"depth", "seed", "train.lr", "train.steps"}
    kinds = {
        str({a: v for a, v in rung.place.items() if a not in alike}): rung
        for rung in reversed(document.rungs())
    }
    return [rung.config for rung in kinds.values()]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_config_is_complete_and_quiet(path):
    assert load(path).advice() == []
    for run in runs(path):
        model = run.with_vocabulary(257).model
        with torch.device("meta"):
            built = Transformer(model)
        assert account(model, run.data.sequence_length).stored == sum(p.numel() for p in built.parameters())
        assert c.parse(c.to_dict(run)) == run


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_learning_rate_is_written_out(path):
    swept = "train.lr" in getattr(load(path), "axes", {})  # looking for the best rate goes past the usual one
    for run in [] if swept else runs(path):
        assert run.train.lr <= (3e-3 if run.model.dim <= 64 else 1e-3)
