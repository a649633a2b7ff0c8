"""A folded model is the same function with a config that has no regulators."""

import pytest
import torch

from depthkit.config import to_dict
from depthkit.model import ModelConfig, Transformer, account, fold
from depthkit.model.gains import Gains
from depthkit.model.placement import PLACEMENTS
from depthkit.model.registries import REGULATORS, STREAMS
from depthkit.model.regulators.base import Regulator
from tests.models import make_ids, make_model, redraw


def logits(model, ids):
    with torch.no_grad():
        return model.head(model(ids).hidden, model._matrix())


def assert_folds(model):
    ids = make_ids()
    folded = fold(model)
    assert not folded.config.regulators
    assert not any(segment.regulators for segment in folded.config.segments)
    assert all(gain is None for gain in vars(folded.schedules(folded.plan)).values())
    torch.testing.assert_close(logits(folded, ids), logits(model, ids), rtol=0, atol=1e-5)
    assert account(folded.config, 9).stored == sum(p.numel() for p in folded.parameters())
    return folded


def regulated(kind, placement, loops, **model):
    """A model of this kind with weights and gains far from their start."""
    cls = REGULATORS.get(kind)
    norm = "none" if cls.needs_norm is False else "rms"
    built = make_model(depth=2, loops=loops, regulators=[kind], placement=placement, norm=norm, **model)
    return redraw(built, std=0.3).eval()


def skips(model):
    skip = model.schedules(model.plan).skip
    return skip is not None and bool((skip != 1).any())


@pytest.mark.parametrize("kind", REGULATORS.names())
@pytest.mark.parametrize("loops", [1, 3])
def test_every_regulator_folds_or_is_refused_with_the_reason(kind, loops):
    for placement in REGULATORS.get(kind).placements or PLACEMENTS:
        model = regulated(kind, placement, loops)
        if skips(model):
            with pytest.raises(ValueError, match=r"skip gain .* visit 0: no weight multiplies"):
                fold(model)
        else:
            assert_folds(model)


@pytest.mark.parametrize("kind", [k for k in REGULATORS.names() if REGULATORS.get(k).neutral is not None])
def test_neutral_regulators_fold_to_the_plain_model_bitwise(kind):
    cls, ids = REGULATORS.get(kind), make_ids()
    model = {
        "placement": (cls.placements or ["pre"])[0],
        "norm": "none" if cls.needs_norm is False else "rms",
    }
    plain = make_model(final_norm=True, **model)
    folded = fold(make_model(final_norm=True, regulators=[{"kind": kind, **cls.neutral}], **model))
    assert torch.equal(logits(folded, ids), logits(plain, ids))
    assert [n for n, _ in folded.named_parameters()] == [n for n, _ in plain.named_parameters()]


def vectors(plan, dim, seed=0):
    """Vector gains of every kind but skip."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: 0.5 + torch.rand(*shape, generator=generator)  # noqa: E731
    sites = (plan.depth, 2, dim)
    return Gains(read=draw(*sites), write=draw(*sites), embed=draw(dim), final=draw(dim), logits=draw(1))


@pytest.fixture
def everything():
    """A toy regulator with vector gains at every site and pseudo-site."""

    @REGULATORS.register("toy_everything")
    class ToyEverything(Regulator):
        """Vector gains everywhere."""

        def gains(self, plan, step, training):
            return vectors(plan, self.dim)

    yield "toy_everything"
    REGULATORS.remove("toy_everything")


@pytest.mark.parametrize("placement", [*PLACEMENTS, [0, 0, 0], [1, 1, 1]])
@pytest.mark.parametrize("norm", ["rms", "layer", "none"])
def test_vector_gains_fold_wherever_norms_stand(everything, placement, norm):
    model = make_model(placement=placement, norm=norm, regulators=[everything])
    assert_folds(redraw(model, std=0.2))


@pytest.mark.parametrize("norm", ["dyt", "derf"])
def test_vector_gains_fold_into_norms_without_statistics(everything, norm):
    assert_folds(redraw(make_model(norm=norm, embed_norm=True, regulators=[everything]), std=0.3))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("final_norm", [True, False, "none"])
@pytest.mark.parametrize("embed_norm", [True, False])
def test_gains_outside_the_blocks_fold_with_every_head(everything, tied, final_norm, embed_norm):
    head = {"kind": "lm", "tied": tied}
    ends = {"final_norm": final_norm, "embed_norm": embed_norm, "head": head}
    folded = assert_folds(redraw(make_model(regulators=[everything], **ends), std=0.3))
    assert not folded.config.head.tied  # the embedding took a gain that the head must not have


def test_a_tied_head_stays_tied_where_the_final_norm_can_take_the_gain():
    tied = {"kind": "lm", "tied": True}
    completep = {"kind": "completep", "base_dim": 8, "scale_init": False}
    folded = assert_folds(redraw(make_model(regulators=[completep], head=tied)))
    assert folded.config.head.tied
    without = assert_folds(redraw(make_model(regulators=[completep], head=tied, final_norm=False)))
    assert not without.config.head.tied


def test_only_segments_whose_visits_differ_are_unrolled():
    segments = [
        {"name": "constant", "pattern": ["dense"], "loops": 2, "regulators": ["residual_scale"]},
        {"name": "varied", "pattern": ["dense"], "repeat": 2, "loops": 3},
        {"name": "plain", "pattern": ["dense"], "loops": 2, "regulators": []},
    ]
    model = redraw(make_model(segments=segments, regulators=["lns"]))
    folded = assert_folds(model)
    assert [(s.loops, s.shared) for s in folded.config.segments] == [(2, True), (3, False), (2, True)]
    assert len(folded.layers) == 8
    assert folded.plan == folded.config.plan()
    assert folded.plan.depth == model.plan.depth


def test_read_goes_into_the_norm_and_write_into_the_output_matrix():
    regulators = ["lns", {"kind": "residual_scale", "scale": 0.5}]
    model = redraw(make_model(depth=4, regulators=regulators))
    new, old = assert_folds(model).layers[3], model.layers[3]
    torch.testing.assert_close(new.mixer.before.weight, 0.5 * old.mixer.before.weight)
    torch.testing.assert_close(new.ffn.branch.down.weight, 0.5 * old.ffn.branch.down.weight)
    assert torch.equal(new.mixer.branch.q.weight, old.mixer.branch.q.weight)
    sandwich = redraw(make_model(depth=4, regulators=regulators, placement="sandwich"))
    new, old = assert_folds(sandwich).layers[3], sandwich.layers[3]
    torch.testing.assert_close(new.ffn.after_branch.weight, 0.5 * old.ffn.after_branch.weight)
    assert torch.equal(new.ffn.branch.down.weight, old.ffn.branch.down.weight)


def test_norms_whose_gains_a_regulator_owned_get_gains_of_their_own():
    model = redraw(make_model(depth=2, regulators=["layer_rope"]))
    assert model.layers[0].mixer.before.weight is None
    folded = assert_folds(model)
    assert folded.layers[0].mixer.before.weight.shape == (16,)
    assert folded.final_norm.weight.shape == (16,)


@pytest.mark.parametrize("kind", STREAMS.names())
def test_models_of_every_stream_fold(kind):
    assert_folds(redraw(make_model(depth=2, loops=2, stream=kind, regulators=["lns", "layer_scale"])))


def test_a_norm_that_needs_the_gains_is_refused_with_the_reason():
    with pytest.raises(ValueError, match=r"norm 'bhyt': before the ffn it estimates"):
        fold(make_model(norm="bhyt", regulators=["lns"]))
    fold(make_model(norm="bhyt"))
    exact = {"kind": "bhyt", "variance": "exact"}
    assert_folds(redraw(make_model(norm=exact, regulators=["lns"])))


def test_the_folded_config_is_complete_and_the_source_is_untouched():
    model = redraw(make_model(depth=2, loops=2, regulators=["lns"])).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    folded = fold(model)
    assert folded.training
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())
    again = Transformer(ModelConfig.model_validate(to_dict(folded.config)))
    again.load_state_dict(folded.state_dict())
    assert torch.equal(logits(again, make_ids()), logits(folded, make_ids()))
