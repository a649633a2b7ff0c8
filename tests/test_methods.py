"""What papers call an architecture is a config of a few lines: each takes a step and names its source."""

import re
from pathlib import Path

import pytest

from depthkit import config as c
from depthkit.model import Transformer
from tests.models import make_ids

FOLDER = Path(__file__).parent.parent / "configs" / "methods"
FILES = sorted(FOLDER.glob("*.yaml"))
UNNUMBERED = {"layer_rope", "embedding_skip", "attention_residual"}
"""Without an arXiv number to give."""


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_comment_names_the_source(path):
    first = path.read_text().splitlines()[0]
    assert first.startswith("# ")
    assert path.stem in UNNUMBERED or re.search(r"arXiv:\d{4}\.\d{5}|arXiv:\d{4}\.\d{4}\b", first)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_the_model_computes_a_loss_and_gradients(path):
    run = c.load(path, ["model.dim=16", "model.vocab_size=31"])
    model = Transformer(run.model)
    ids = make_ids()
    loss = model(ids, ids).loss
    loss.backward()
    assert loss.isfinite()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(g.isfinite().all() for g in gradients)
    assert any((g != 0).any() for g in gradients)


def model(name):
    return c.load(FOLDER / f"{name}.yaml").model


def placements(config):
    return [tuple(config.placement_of(s)) for s in config.segments for _ in range(len(s.pattern) * s.repeat)]


def test_mix_ln_is_a_quarter_of_post_ln_and_then_pre_ln():
    assert placements(model("mix_ln")) == [(0, 0, 1)] * 2 + [(1, 0, 0)] * 6


@pytest.mark.parametrize(
    ("name", "sites", "embed_norm", "final_norm"),
    [
        ("post_ln", (0, 0, 1), False, False),
        ("sandwich", (1, 1, 0), False, True),
        ("peri_ln", (1, 1, 0), True, True),
        ("olmo2", (0, 1, 0), False, True),
        ("huginn_placement", (1, 0, 1), False, True),
        ("deepnorm", (0, 0, 1), False, False),
        ("keel", (1, 0, 1), False, True),
    ],
)
def test_placements_are_those_of_the_papers(name, sites, embed_norm, final_norm):
    config = model(name)
    assert set(placements(config)) == {sites}
    assert (config.outer_norm("embed_norm") is not None) == embed_norm
    assert (config.outer_norm("final_norm") is not None) == final_norm
    assert config.blocks["dense"].mixer.qk_norm == (name == "olmo2")
