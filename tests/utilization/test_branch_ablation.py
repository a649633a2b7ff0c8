"""Skipped branches against models whose output projections are zero."""

import copy

import pytest
import torch
import torch.nn.functional as F

from depthkit.utilization import Sequences, Subject, evaluate
from depthkit.utilization.replay import Engine
from tests.utilization.families import family
from tests.utilization.models import mixing, tokens
from tests.utilization.test_families import PARALLEL
from tests.utilization.test_planned import build

WINDOWS = tokens(count=3, length=8, vocab=97)
OUTPUTS = {
    "llama": ("self_attn.o_proj", "mlp.down_proj", 0.0),
    "gpt2": ("attn.c_proj", "mlp.c_proj", 0.0),
    "granite": ("self_attn.o_proj", "mlp.down_proj", 0.0),
    "falcon": ("self_attention.dense", "mlp.dense_4h_to_h", 0.0),
    # The sandwich norm scales by 1 + weight.
    "gemma2": ("post_attention_layernorm", "post_feedforward_layernorm", -1.0),
}
LOUD = {"residual_multiplier": 3.0, "embedding_multiplier": 1.0}
"""Multipliers with which granite's branches matter."""


def loss(model):
    with torch.no_grad():
        logits = model(WINDOWS[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1), WINDOWS[:, 1:].flatten()).item()


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_skipped_branch_is_a_zeroed_projection(name):
    model = family(name, num_hidden_layers=3, **(LOUD if name == "granite" else {}))
    layers = Subject(model).structure.describe()["layers"][0]
    report = evaluate(model, WINDOWS, ["branch_ablation"])
    assert report.content["skipped"] == [] or name in PARALLEL
    intact, (*projections, silent) = loss(model), OUTPUTS[name]
    for branch, projection in zip(("mixer", "ffn"), projections, strict=True):
        found = report.per_visit(f"ablation_delta_nats.skip_{branch}")
        for visit in range(3):
            other = copy.deepcopy(model)
            for parameter in other.get_submodule(f"{layers}.{visit}.{projection}").parameters():
                parameter.data.fill_(silent)
            assert found[visit] == pytest.approx(loss(other) - intact, abs=3e-6)
            assert abs(found[visit]) > 1e-5


@pytest.mark.parametrize("name", sorted(PARALLEL))
def test_parallel_branches_add_up_to_the_layer(name):
    subject = Subject(family(name))
    with subject.frozen():
        (trace,) = Engine(subject, Sequences.of(WINDOWS)).record()
        path, before, after = trace.path, trace.before[1], trace.after[1]
        ffn, mixer = (path.run(1, before, (branch,))[0] - before for branch in ("mixer", "ffn"))
        torch.testing.assert_close(before + ffn + mixer, after)
        assert float(ffn.norm()) > 0.01 < float(mixer.norm())
        assert torch.equal(path.run(1, before, ("mixer", "ffn"))[0], before)
        # Only the mixer lets a token see another.
        moved = before.clone()
        moved[:, 0] += 1.0
        alone = path.run(1, moved, ("mixer",))[0] - path.run(1, before, ("mixer",))[0]
        assert torch.equal(alone[:, 1:], torch.zeros_like(alone[:, 1:]))
        assert not torch.equal(
            path.run(1, moved, ("ffn",))[0][:, 1:], path.run(1, before, ("ffn",))[0][:, 1:]
        )


@pytest.mark.parametrize(("branch", "matrix"), [("mixer", "mixer.branch.o"), ("ffn", "ffn.branch.down")])
def test_own_models(branch, matrix):
    model, windows = build("plain"), tokens(3, 8, vocab=11)
    found = evaluate(model, windows, ["branch_ablation"]).per_visit(f"ablation_delta_nats.skip_{branch}")
    before, after = (
        evaluate(m, windows, ["stream"]).content["baseline"]["loss_nats"]
        for m in (model, _zeroed(model, matrix))
    )
    assert found[1] == pytest.approx(after - before, abs=1e-6)


def _zeroed(model, matrix):
    other = copy.deepcopy(model)
    other.layers[1].get_submodule(matrix).weight.data.zero_()
    return other


def test_a_layer_that_writes_as_a_whole_has_no_branches():
    report = evaluate(mixing(3), tokens(), ["branch_ablation"])
    assert report.per_visit("ablation_delta_nats.skip_mixer") == [None] * 3
    (entry,) = report.content["skipped"]
    assert "3 of 3 visits, such as 0: the inside of its layer was not looked at" in entry["reason"]
    model = mixing(2)
    subject = Subject(model, layers="layers", final_norm="norm", head="head")
    (trace,) = Engine(subject, Sequences.of(tokens())).record()
    assert "no module inside reads" in trace.path.inseparable(0)
    with pytest.raises(ValueError, match="a single branch of visit 1 cannot be skipped: no module inside"):
        trace.path.run(1, trace.before[1], ("ffn",))
