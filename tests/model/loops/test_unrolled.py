"""A looped model equals the unrolled one with tied weights: forward bit for bit, gradients to rounding."""

import pytest
import torch

from depthkit.model import Transformer, unroll
from depthkit.model.loops.states import Noise
from depthkit.model.registries import STREAMS
from depthkit.model.streams.embedding_skip import EmbeddingSkip
from tests.model.loops.written import FULL, RANDOM, looped, moe, segments
from tests.models import make_config, make_ids, make_model, redraw

MODELS = {
    "plain": ({}, {}),
    "full": (FULL, {}),
    "random": (RANDOM, {}),
    "moe": (FULL, moe()),
    "moe per_loop": ({}, moe(router="per_loop", bias_rate=0.1)),
    "moe shared_bias": (FULL, moe(router="shared_bias", score="sigmoid", shared_experts=1)),
    "unshared": ({**FULL, "shared": False}, {}),
}
RECURRENT = [name for name in STREAMS.names() if name != "attention_residual"]


def agree(model):
    """Values bit for bit; the gradient of a layer is the sum over its copies."""
    flat, ids = unroll(model), make_ids()
    a, b = model(ids, ids), flat(ids, ids)
    assert torch.equal(a.hidden, b.hidden)
    assert torch.equal(a.loss, b.loss)
    a.loss.backward()
    b.loss.backward()
    expected = {n: p.grad for n, p in flat.named_parameters() if not n.startswith("layers.")}
    for visit in model.plan.visits:
        for name, parameter in flat.layers[visit.index].named_parameters():
            place = f"layers.{visit.layer}.{name}"
            expected[place] = expected.get(place, 0) + parameter.grad
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("name", MODELS)
def test_it_equals_its_unrolled_self(name):
    core, settings = MODELS[name]
    agree(redraw(make_model(segments=segments(core), regulators=["lns"], **settings)))


@pytest.mark.parametrize("core", [{}, FULL, RANDOM], ids=["plain", "full", "random"])
@pytest.mark.parametrize("stream", RECURRENT)
def test_every_stream_that_can_loop_equals_its_unrolled_self(stream, core):
    agree(redraw(make_model(segments=segments(core, loops=2), stream=stream)))


def test_a_stream_without_a_sum_loops_plainly_and_refuses_the_rest():
    agree(redraw(make_model(segments=segments(loops=2), stream="attention_residual")))
    for setting in (
        {"inject": "add"},
        {"carry": "mean"},
        {"readout": "weighted"},
        {"out_norm": True},
        {"loop_embedding": True},
    ):
        with pytest.raises(ValueError, match="attention_residual has no sum that segment 'core'"):
            make_config(segments=segments(setting), stream="attention_residual")


@pytest.mark.parametrize("core", [FULL, RANDOM], ids=["full", "random"])
@pytest.mark.parametrize("stream", ["hyper", "mhc", "embedding_skip"])
def test_streams_that_start_as_one_still_do_with_policies(stream, core):
    """At their start n parallel streams are n copies of one, also where loops inject, carry and read out."""
    ids, states = make_ids(), {}
    for kind in ("single", stream):
        model = make_model(segments=segments(core), stream=kind, init={"kind": "normal", "std": 0.2})
        with torch.no_grad():
            policies = model.recurrences["core"]
            model.embed.weight.mul_(20)
            if core is FULL:
                policies.embedding.normal_(0, 0.5, generator=torch.Generator().manual_seed(2))
        seen = []
        model(ids, observe=lambda visit, before, after, s=seen: s.extend((before, after)))
        states[kind] = torch.stack(seen)
    copies = 1 if stream == "embedding_skip" else 4
    torch.testing.assert_close(states[stream] / copies, states["single"], rtol=1e-4, atol=1e-5)


def test_a_read_out_that_is_sure_of_the_last_loop_hands_on_the_last_loop():
    sure = {"readout": {"kind": "weighted", "bias": 1e4}}
    ids = make_ids()
    for stream in RECURRENT:
        outputs = [make_model(segments=segments(core), stream=stream)(ids).hidden for core in ({}, sure)]
        if stream in {"single", "embedding_skip"}:
            assert torch.equal(*outputs)
        assert outputs[0].shape == outputs[1].shape


def test_a_random_state_leaves_the_embedding_that_a_stream_keeps():
    model = redraw(
        make_model(
            segments=segments({"inject": "add", "state_init": "zero", "readout": "weighted"}),
            stream="embedding_skip",
        )
    )
    assert isinstance(model.stream, EmbeddingSkip)
    ids, kept = make_ids(), []
    for layer in model.layers:
        layer.register_forward_hook(lambda module, args, output: kept.append(output[0].x0))
    model(ids)
    assert len(kept) == 8
    assert all(torch.equal(x0, model.embed(ids)) for x0 in kept)


def test_noise_is_the_same_at_a_position_in_evaluation_and_per_sequence_in_training():
    model = redraw(make_model(segments=segments(RANDOM)))
    state, e = model.recurrences["core"].state_init, torch.zeros(4, 300, 64)
    still, again = state(e, Noise()), state(e[:, :100], Noise())
    assert torch.equal(still[:, :100], again)
    assert torch.equal(still[0], still[3])
    assert torch.equal(state(e[:, :60], Noise(start=40)), still[:, 40:100])
    drawn = state(e, Noise(seed=5))
    assert torch.equal(drawn, state(e, Noise(seed=5)))
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn, state(e, Noise(seed=6)))
    assert drawn.abs().max() <= 3 * 0.4**0.5 + 1e-6
    # the variance of a normal cut at three deviations is 0.9733 of the uncut one
    assert drawn.var().item() == pytest.approx(0.4 * 0.97333, rel=0.02)


def test_every_count_of_a_sampled_model_is_the_model_with_that_count():
    """Tables have rows for the longest count; each count uses the first of them."""
    sampled = {"kind": "uniform", "min": 1, "max": 4}
    model = looped({**FULL}, loops=sampled)
    ids = make_ids(vocab=11)
    for loops in (1, 3, 4):
        fixed = Transformer(
            make_config(segments=segments(FULL, loops), norm="none", final_norm=False, dim=8, vocab=11)
        )
        fixed.double()
        for name, value in fixed.state_dict().items():
            value.copy_(model.state_dict()[name][: len(value)])
        assert torch.equal(model(ids, loops=loops).hidden, fixed(ids).hidden)
