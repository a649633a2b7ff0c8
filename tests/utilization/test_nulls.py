"""Null models: what they change, what they leave, and where a report shows them."""

import pytest
import torch

from depthkit.model import unroll
from depthkit.utilization import Subject, evaluate
from depthkit.utilization.nulls import NULLS
from depthkit.utilization.nulls.shuffled_layers import alike
from depthkit.utilization.options import EvalOptions
from tests.models import make_ids, make_model, model_dict, redraw
from tests.utilization import models
from tests.utilization.families import family

SKIP = "ablation_delta_nats.skip"


def null(kind, model, seed=0):
    """The null model of a model."""
    config = NULLS.get(kind).Config()
    return config.component(config).of(Subject(model), seed).model


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(first, second):
    a, b = weights(first), weights(second)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


class TestRandomInit:
    def test_depthkit_models_start_as_a_run_does(self):
        model = redraw(make_model(depth=3))
        before = weights(model)
        assert same(null("random_init", model, seed=7), make_model(seed=7, depth=3))
        assert all(torch.equal(before[name], value) for name, value in weights(model).items())

    def test_an_unrolled_model_stays_unrolled(self):
        model = unroll(redraw(make_model(depth=2, loops=3)))
        assert len(null("random_init", model).layers) == 6

    def test_hugging_face_models_are_built_from_their_config(self):
        model = family("llama")
        fresh, again, other = (null("random_init", model, seed) for seed in (0, 0, 1))
        assert same(fresh, again)
        assert not same(fresh, other)
        std = fresh.model.layers[0].mlp.up_proj.weight.detach().std()
        assert float(std) == pytest.approx(model.config.initializer_range, rel=0.1)
        assert fresh.config._attn_implementation == model.config._attn_implementation

    def test_other_modules_reset_themselves(self):
        model = models.mixing(3)
        torch.manual_seed(5)
        fresh = null("random_init", model.double(), seed=3)
        expected = torch.get_rng_state()
        torch.manual_seed(5)
        assert torch.equal(torch.get_rng_state(), expected)
        assert fresh.head.weight.dtype == torch.float64
        assert not torch.equal(fresh.layers[0].inner.weight, model.layers[0].inner.weight)

    def test_a_part_that_cannot_is_named(self):
        model = models.Model([models.Add(torch.ones(8))])
        with pytest.raises(ValueError, match=r"layers\.0 \(Add\) has no reset_parameters"):
            null("random_init", model)


class TestShuffledLayers:
    def test_the_same_layers_in_another_order(self):
        model = models.mixing(5)
        shuffled = null("shuffled_layers", model)
        names = [layer.inner.weight.sum().item() for layer in model.layers]
        moved = [layer.inner.weight.sum().item() for layer in shuffled.layers]
        assert sorted(moved) == sorted(names)
        assert moved != names
        assert torch.equal(shuffled.head.weight, model.head.weight)
        assert moved == [layer.inner.weight.sum().item() for layer in null("shuffled_layers", model).layers]

    def test_two_layers_always_change_places(self):
        model = models.mixing(2)
        for seed in range(5):
            moved = null("shuffled_layers", model, seed)
            assert torch.equal(moved.layers[0].inner.weight, model.layers[1].inner.weight)

    def test_only_alike_layers_change_places(self):
        dense = model_dict()["blocks"]["dense"]
        moe = dense | {"ffn": {"kind": "moe", "num_experts": 4, "top_k": 2}}
        segments = [{"name": "trunk", "pattern": ["dense", "moe"], "repeat": 2}]
        model = redraw(make_model(blocks={"dense": dense, "moe": moe}, segments=segments))
        assert [len(group) for group in alike(list(model.layers))] == [2, 2]
        shuffled = null("shuffled_layers", model)
        for here, there in ((0, 2), (2, 0), (1, 3), (3, 1)):
            assert same(shuffled.layers[here], model.layers[there])
        assert evaluate(shuffled, make_ids(4, 10), ["ablation"]).depth == 4

    def test_masks_stay_with_their_place(self):
        """Sliding and full layers alternate in gemma2: only weights may move."""
        model = family("gemma2")
        shuffled = null("shuffled_layers", model)
        for before, after in zip(model.model.layers, shuffled.model.layers, strict=True):
            assert before.self_attn.sliding_window == after.self_attn.sliding_window
            assert before.self_attn.layer_idx == after.self_attn.layer_idx

    def test_one_layer_cannot_be_shuffled(self):
        with pytest.raises(ValueError, match="nothing to shuffle: 1 layers"):
            null("shuffled_layers", redraw(make_model(depth=1, loops=3)))


@pytest.fixture(scope="module")
def report():
    return evaluate(models.mixing(3), models.tokens(), null=["shuffled_layers", "random_init"])


class TestReport:
    def test_it_is_what_the_null_model_alone_gives(self, report):
        found = report.nulls["shuffled_layers"]
        alone = evaluate(null("shuffled_layers", models.mixing(3), found["seed"]), models.tokens())
        assert found["per_visit"][SKIP]["values"] == alone.per_visit(SKIP)
        assert found["per_visit"][SKIP]["low"] == alone.interval(SKIP)[0]
        assert found["baseline"] == alone.content["baseline"]
        assert found["scalars"]["depth_score.ablation"] == alone.scalar("depth_score.ablation")
        matrix = "causal_effect.ratio_of_means"
        assert found["matrix_means"][matrix] == pytest.approx(alone.matrix_mean(matrix))

    def test_it_changes_nothing_of_the_model(self, report):
        alone = evaluate(models.mixing(3), models.tokens())
        for name in alone.metrics:
            assert report.per_visit(name) == alone.per_visit(name)
        assert report.content["timing"]["layer_evals"] == 6
        assert [null["timing"]["layer_evals"] for null in report.nulls.values()] == [6, 6]

    def test_the_summary_compares(self, report):
        (line,) = [s for s in report.content["summary"] if s.startswith("Against chance: ")]
        first, second = report.content["baseline"], report.nulls["shuffled_layers"]["baseline"]
        assert "next to the same layers in a random order, loss " in line
        assert "Next to a random initialisation of the same architecture, loss " in line
        assert f"loss {first['loss_nats']:.3f} instead of {second['loss_nats']:.3f};" in line
        costs, others = report.per_visit(SKIP), report.nulls["shuffled_layers"]["per_visit"][SKIP]["values"]
        cheap, theirs = (sum(cost <= 0.05 for cost in each) for each in (costs, others))
        assert f"; {cheap} instead of {theirs} layers can be skipped within 0.05 nat;" in line

    def test_progress_counts_all_models(self):
        seen = []
        evaluate(
            models.mixing(3),
            models.tokens(),
            ["ablation"],
            null=["shuffled_layers", "random_init"],
            progress=lambda done, total: seen.append((done, total)),
        )
        assert {total for _, total in seen} == {18.0}
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)
        assert seen[-1][0] == 18.0

    def test_a_model_seen_through_functions_has_none(self):
        model = models.mixing(2)
        subject = Subject(model, read_out=model.read_out)
        with pytest.raises(ValueError, match="seen through read_out="):
            evaluate(subject, models.tokens(), null="random_init")

    def test_given_layers_are_found_again_by_path(self):
        model = models.mixing(3)
        subject = Subject(model, layers=[model.layers[0], "layers.2"])
        assert [m.inner.weight.shape for m in subject.like(models.mixing(3, seed=2)).layers] == [(16, 8)] * 2

    def test_weights_on_disk_have_none(self):
        model = models.mixing(2)
        model.norm.register_parameter("elsewhere", torch.nn.Parameter(torch.empty(2, device="meta")))
        assert evaluate(model, models.tokens(), ["stream"]).nulls == {}
        with pytest.raises(ValueError, match="null=random_init: needs a second model in memory"):
            evaluate(model, models.tokens(), ["stream"], null="random_init")


class TestOptions:
    @pytest.mark.parametrize(
        ("value", "kinds"),
        [
            ("none", []),
            ("random_init", ["random_init"]),
            (["shuffled_layers", {"kind": "random_init"}], ["shuffled_layers", "random_init"]),
            ("auto", []),
        ],
    )
    def test_forms(self, value, kinds):
        options = EvalOptions.model_validate({"null": value})
        assert [config.kind for config in options.nulls] == kinds
        assert EvalOptions.model_validate(options.model_dump()).nulls == options.nulls

    def test_mistakes(self):
        with pytest.raises(ValueError, match="did you mean 'random_init'"):
            EvalOptions.model_validate({"null": "randm_init"})
        with pytest.raises(ValueError, match="each once"):
            EvalOptions.model_validate({"null": ["random_init", "random_init"]})
