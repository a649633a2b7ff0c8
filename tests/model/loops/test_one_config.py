"""One config file is dense, a mixture, looped, or a looped mixture by overrides alone."""

from pathlib import Path

import pytest
import torch

from depthkit import config as configs
from depthkit.model import Transformer, account
from tests.models import make_ids

FILE = Path(__file__).parents[3] / "configs" / "quickstart.yaml"
MOE = ("model.blocks.dense.ffn=moe", "model.blocks.dense.ffn.num_experts=4")
LOOPED = ("model.segments.core.repeat=2", "model.segments.core.loops=3")
HUGINN = (
    "model.segments.core.inject=linear",
    "model.segments.core.state_init=normal",
    "model.segments.core.loops={kind: poisson_lognormal, mean: 3, max: 5}",
    "model.segments.core.loops.backprop=2",
)
FORMS = {
    "dense": ((), 4, 4),
    "moe": (MOE, 4, 4),
    "looped": (LOOPED, 2, 6),
    "looped moe": ((*MOE, *LOOPED, "model.blocks.dense.ffn.router=per_loop"), 2, 6),
    "sampled": ((*LOOPED, *HUGINN), 2, 6),
    "back again": ((*MOE, *LOOPED, "model.segments.core.loops=1", "model.blocks.dense.ffn=swiglu"), 2, 2),
    "a number again": ((*LOOPED, *HUGINN[:3], "model.segments.core.loops=2"), 2, 4),
}


def model_of(overrides):
    run = configs.load(FILE, ["model.vocab_size=31", "model.dim=16", *overrides])
    return Transformer(run.model)


@pytest.mark.parametrize("name", FORMS)
def test_overrides_alone_make_it(name):
    overrides, layers, depth = FORMS[name]
    model, ids = model_of(overrides), make_ids()
    assert (len(model.layers), model.plan.depth) == (layers, depth)
    assert account(model.config, 9).stored == sum(p.numel() for p in model.parameters())
    output = model(ids, ids)
    output.loss.backward()
    assert torch.isfinite(output.loss)
    assert [bool(aux) for aux in output.aux] == ["moe" in name] * depth
    assert all(p.grad is not None for p in model.parameters())


def test_what_is_turned_off_again_leaves_no_trace():
    plain, back = model_of(["model.segments.core.repeat=2"]), model_of(FORMS["back again"][0])
    assert back.config == plain.config
    assert torch.equal(back(make_ids()).hidden, plain(make_ids()).hidden)


def test_a_config_survives_its_file(tmp_path):
    """What a run writes as config.yaml is read back as the same config."""
    import yaml

    for overrides, _, _ in FORMS.values():
        run = configs.load(FILE, list(overrides))
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump(configs.to_dict(run)))
        assert configs.load(path) == run


def test_what_there_is_not_is_named():
    with pytest.raises(configs.ConfigError, match=r"looked for inside 3, which has no keys|backprop"):
        configs.load(FILE, [*LOOPED, "model.segments.core.loops.backprop=2"])
    with pytest.raises(configs.ConfigError, match="unknown key 'injekt'; did you mean 'inject'"):
        configs.load(FILE, ["model.segments.core.injekt=add"])
