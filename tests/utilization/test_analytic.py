"""Models of a real family whose answers are known beforehand."""

import numpy as np
import pytest
import torch

from depthkit.utilization import Sequences, evaluate
from depthkit.utilization.sequences import IGNORED
from tests.utilization.families import family
from tests.utilization.models import tokens

PROBES = ["stream", "contribution", "influence", "angular", "ablation", "causal", "lens"]


def measured(model, sequences=None, **settings):
    return evaluate(model, tokens(vocab=97) if sequences is None else sequences, PROBES, **settings)


def numbers(report):
    return {name: np.array(report.per_visit(name), float) for name in report.metrics}


def same(one, other):
    one, other = numbers(one), numbers(other)
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_layer_that_writes_nothing():
    model = family("llama")
    with torch.no_grad():
        model.model.layers[2].self_attn.o_proj.weight.zero_()
        model.model.layers[2].mlp.down_proj.weight.zero_()
    report = measured(model)
    zero = {
        "ablation_delta_nats.skip",
        "ablation_delta_accuracy.skip",
        "block_influence.mean",
        "angular_distance.last_token",
        "angular_distance.all_tokens",
        "relative_contribution.mean",
        "later_effect.ratio_of_means",
        "later_effect.max_all_tokens",
    }
    assert zero <= set(report.metrics)
    for name in zero:
        values = report.per_visit(name)
        assert values[2] == 0, name
        assert values[1] != 0, name
    assert report.per_visit("update_cosine.mean")[2] is None  # nothing has no direction


def test_a_stream_twice_as_large_has_equal_angles_and_losses():
    """Embedding and output projections times two: every branch reads a normed state, so all states double."""
    model = family("llama", rms_norm_eps=0.0)
    before = measured(model)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(2)
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(2)
            layer.mlp.down_proj.weight.mul_(2)
    after = measured(model)
    powers = {"variance": 2, "rms": 1, "norm": 1}
    for name, values in numbers(before).items():
        factor = 2.0 ** powers.get(name.partition(".")[0], 0)
        np.testing.assert_allclose(numbers(after)[name], factor * values, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral", "gemma2"])
def test_padding_at_the_end_does_not_matter(name):
    model, windows = family(name), tokens(vocab=97, length=12)
    ids, targets = windows[:, :-1], windows[:, 1:]
    pad = torch.zeros(len(ids), 3, dtype=torch.int64)
    padded = Sequences.of_targets(torch.cat([ids, pad], 1), torch.cat([targets, pad + IGNORED], 1))
    same(measured(model, Sequences.of_targets(ids, targets)), measured(model, padded))


def test_padding_in_front_is_refused():
    ids = torch.ones(2, 5, dtype=torch.int64)
    mask = torch.tensor([[False, True, True, True, True], [True] * 5])
    with pytest.raises(ValueError, match="padding must follow the tokens"):
        Sequences.of((ids, ids, mask))


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_order_of_windows_does_not_matter(name):
    model, windows = family(name), tokens(vocab=97)
    same(measured(model, windows), measured(model, windows.flip(0), batch_tokens=24))


@pytest.mark.parametrize("depth", [1, 2])
def test_shallow_models_have_nulls_not_errors(depth):
    report = measured(family("llama", num_hidden_layers=depth))
    assert report.depth == depth
    assert report.per_visit("later_effect.ratio_of_means")[-1] is None
    assert all(cost is not None for cost in report.per_visit("ablation_delta_nats.skip"))


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_router_loss_never_enters_the_loss(name):
    windows = tokens(vocab=97)
    plain, weighted = (
        measured(family(name, output_router_logits=True, router_aux_loss_coef=size), windows)
        for size in (0.0, 1.0)
    )
    assert plain.content["baseline"] == weighted.content["baseline"]
