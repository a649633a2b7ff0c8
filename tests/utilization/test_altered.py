"""What every probe that alters the run has in common: analytic models, micro-batches, padding, shallow models."""

import numpy as np
import pytest
import torch

from depthkit.utilization import Sequences, evaluate
from depthkit.utilization import replay as engine
from depthkit.utilization.sequences import IGNORED
from tests.utilization import models
from tests.utilization.byhand import ALTERING
from tests.utilization.families import family
from tests.utilization.test_planned import build

LOOPED = ["mean_ablation", "resample_ablation", "loop_ablation", "local_effect", "output_effect"]
ZERO = {
    "ablation_delta_nats.mean_write",
    "ablation_delta_nats.resampled_write",
    "order_delta_nats.repeated",
    "local_effect.ratio_of_means",
    "local_effect.max_all_tokens",
    "future_effect.ratio_of_means",
    "future_effect.max_all_tokens",
    "output_effect_l2.mean",
    "output_effect_l2.max_all_tokens",
    "output_effect_kl_nats.mean",
}


def same(one, other):
    for metric in one.metrics:
        first, second = (np.array(report.per_visit(metric), float) for report in (one, other))
        np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-6, err_msg=metric)
    assert set(one.arrays) == set(other.arrays)
    for name in one.content["matrices"]:
        np.testing.assert_allclose(one.arrays[name], other.arrays[name], rtol=1e-4, atol=1e-6, err_msg=name)
    for name in one.content["scalars"]:
        value = one.scalar(name)
        close = pytest.approx(value, rel=1e-4, abs=1e-6) if isinstance(value, float) else value
        assert other.scalar(name) == close, name


def test_an_identity_layer_has_no_effect():
    torch.manual_seed(0)
    model = models.Model([models.Mixing(), models.Identity(), models.Mixing()])
    report = evaluate(model, models.tokens(), ALTERING)
    for metric in ZERO:
        values = report.per_visit(metric)
        assert values[1] == 0.0, metric
        assert values[0] != 0.0, metric
    assert report.arrays["block_drop_delta_nats.skip"][1, 0] == 0.0
    assert np.isnan(report.arrays["local_effect.ratio_of_means"][0, 1])  # an effect on nothing is undefined


@pytest.mark.parametrize("kind", ["plain", "looped"])
def test_results_do_not_depend_on_the_micro_batch(kind, monkeypatch):
    windows, probes = models.tokens(5, 6, vocab=11), ALTERING if kind == "plain" else LOOPED
    model = models.mixing(4) if kind == "plain" else build(kind)
    whole = evaluate(model, windows, probes)
    same(whole, evaluate(model, windows, probes, batch_tokens=12))
    monkeypatch.setattr(engine, "LIVE_BYTES", 1)
    same(whole, evaluate(model, windows, probes))


def test_padding_does_not_matter():
    windows = models.tokens()
    ids, targets = windows[:, :-1], windows[:, 1:]
    pad = torch.zeros(len(ids), 3, dtype=torch.int64)
    padded = Sequences.of_targets(torch.cat([ids, pad], 1), torch.cat([targets, pad + IGNORED], 1))
    probes = [name for name in ALTERING if name != "future_effect"]  # its cuts are drawn from the window
    model = models.mixing(3)
    same(evaluate(model, Sequences.of_targets(ids, targets), probes), evaluate(model, padded, probes))


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("count", "length"), [(1, 1), (2, 5)])
def test_shallow_models_have_nulls_not_errors(depth, count, length, tmp_path):
    report = evaluate(models.mixing(depth), models.tokens(count, length), ALTERING)
    assert report.per_visit("swap_delta_nats.adjacent")[-1] is None
    for name in ("local_effect", "future_effect"):
        assert report.per_visit(f"{name}.ratio_of_means")[-1] is None
    report.save(tmp_path, plots=False)


@pytest.mark.parametrize("name", ["hyper looped", "mhc", "attention_residual"])
def test_streams_that_cannot_be_replaced_say_so(name):
    report = evaluate(build(name), models.tokens(3, 6, vocab=11), ALTERING)
    reasons = {entry["metric"]: entry["reason"] for entry in report.content["skipped"]}
    for metric in ("ablation_delta_nats.mean_write", "ablation_delta_nats.resampled_write"):
        assert "more than one residual" in reasons[metric]
        assert set(report.per_visit(metric)) == {None}
    for metric in ("future_effect", "local_effect", "order_delta_nats.middle_parallel"):
        assert "more than one residual" in reasons[metric]
    assert None not in report.per_visit("ablation_delta_nats.skip_ffn")
    assert report.scalar("order_delta_nats.middle_reversed") is not None


def test_a_hugging_face_model_has_all_of_them():
    report = evaluate(family("mixtral", num_hidden_layers=2), models.tokens(2, 6, vocab=97), ALTERING)
    left_out = {entry["metric"] for entry in report.content["skipped"]}
    assert left_out == {"loop_ablation", "routing_change.mean", "order_delta_nats.reversed_window"}
    assert None not in report.per_visit("ablation_delta_nats.skip_mixer")
