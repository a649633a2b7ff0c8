"""What holds of every registered stream, whatever its equation."""

from functools import partial

import pytest
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from depthkit.model import Transformer, account, unroll
from depthkit.model.gains import SiteGains
from depthkit.model.registries import STREAMS
from tests.model.one_graph import check_one_graph_a_grad_mode
from tests.models import make_config, make_ids, make_model, redraw

VARIANTS = {
    "single": "single",
    "embedding_skip": "embedding_skip",
    "embedding_skip_normalised": {"kind": "embedding_skip", "normalise": True},
    "hyper": {"kind": "hyper", "streams": 3},
    "hyper_static": {"kind": "hyper", "dynamic": False},
    "mhc": {"kind": "mhc", "streams": 3, "iterations": 2},
    "mhc_deepseek_v4": {"kind": "mhc", "form": "deepseek_v4", "iterations": 2},
    "attention_residual": {"kind": "attention_residual", "groups": 2},
    "attention_residual_full": {"kind": "attention_residual", "form": "full"},
}
every_variant = pytest.mark.parametrize("name", VARIANTS)


def test_every_registered_stream_is_tested_here_and_documented():
    kinds = {v if isinstance(v, str) else v["kind"] for v in VARIANTS.values()}
    assert kinds == set(STREAMS.names())
    for kind in STREAMS.names():
        assert STREAMS.get(kind).equation, kind
        assert STREAMS.get(kind).source, kind


@every_variant
@pytest.mark.parametrize("loops", [1, 3])
def test_parameters_and_flops_are_as_accounted(name, loops):
    mixer = {"kind": "gqa", "num_heads": 2, "num_kv_heads": 1, "backend": "eager"}
    blocks = {"dense": {"mixer": mixer, "ffn": "swiglu"}}
    config = make_config(depth=3, loops=loops, stream=VARIANTS[name], blocks=blocks)
    model, ids, counts = Transformer(config).requires_grad_(False), make_ids(), account(config, 9)
    assert counts.stored == sum(p.numel() for p in model.parameters())
    with FlopCounterMode(display=False) as counter:
        model.head(model(ids).hidden, model._matrix())
    assert counter.get_total_flops() == counts.executed_flops_per_token * ids.numel()
    assert counts.flops_per_token < counts.executed_flops_per_token


@pytest.mark.parametrize("form", ["full", "block"])
def test_attention_over_depth_is_asked_for_what_is_filled_only(form):
    config = make_config(depth=4, stream={"kind": "attention_residual", "form": form, "groups": 2})
    seen = [1, 2, 3, 4, 5, 6, 7, 8, 9] if form == "full" else [1, 2, 2, 2, 2, 3, 3, 3, 3]
    assert config.stream.flops(config.plan(), 16) == sum(4 * 16 * filled for filled in seen)


@every_variant
def test_gradients_reach_every_parameter_and_only_matrices_decay(name):
    model, ids = redraw(make_model(depth=3, loops=2, stream=VARIANTS[name])), make_ids()
    model(ids, ids).loss.backward()
    for info in model.named_roles():
        assert info.parameter.grad is not None, info.name
        assert (info.parameter.grad != 0).any(), info.name
        assert info.role == "schedule" or "stream_bank" not in info.name
        assert info.parameter.ndim > 0


@every_variant
def test_meta_construction_then_reset_equals_direct_construction(name):
    config, ids = make_config(depth=3, loops=2, stream=VARIANTS[name]), make_ids()
    with torch.device("meta"):
        model = Transformer(config, seed=3)
    model = model.to_empty(device="cpu")
    for parameter in model.parameters():
        parameter.data.fill_(torch.nan)
    model.reset_parameters(3)
    direct = Transformer(config, seed=3)
    for key, value in direct.state_dict().items():
        assert torch.equal(model.state_dict()[key], value), key
    assert torch.equal(model(ids).hidden, direct(ids).hidden)


@every_variant
def test_looped_equals_unrolled_bitwise(name):
    looped = redraw(make_model(depth=2, loops=3, stream=VARIANTS[name], regulators=["lns"]))
    flat, ids = unroll(looped), make_ids()
    a, b = looped(ids, ids), flat(ids, ids)
    assert torch.equal(a.hidden, b.hidden)
    assert torch.equal(a.loss, b.loss)


@every_variant
def test_state_dict_round_trip(name):
    model, ids = redraw(make_model(depth=3, stream=VARIANTS[name])), make_ids()
    other = make_model(seed=9, depth=3, stream=VARIANTS[name])
    assert not torch.equal(model(ids).hidden, other(ids).hidden)
    other.load_state_dict(model.state_dict())
    assert torch.equal(model(ids).hidden, other(ids).hidden)


@every_variant
def test_bf16_autocast_keeps_the_state_in_fp32(name):
    model, ids, states = make_model(dim=32, stream=VARIANTS[name]), make_ids(), []
    for layer in model.layers:
        layer.register_forward_hook(lambda module, args, output: states.extend(tree_leaves(output[0])))
    with torch.autocast("cpu", torch.bfloat16):
        output = model(ids, ids)
    output.loss.backward()
    assert states
    assert {state.dtype for state in states} == {torch.float32}
    torch.testing.assert_close(output.loss, model(ids, ids).loss, rtol=1e-2, atol=0)
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())


@every_variant
def test_streams_mix_in_fp32_under_autocast(name):
    model, x = redraw(make_model(stream=VARIANTS[name])), torch.randn(2, 5, 16)
    maps, stream = model.schedules.banks(model.plan)[1].stream[0], model.stream
    seen = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            state = stream.open(x)
            y, link = stream.read(state, 0, maps)
            state = stream.write(state, y, 0, link, SiteGains(), maps)
            seen.append([y, *tree_leaves(state)])
    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))


@every_variant
def test_the_state_keeps_its_shapes_and_its_tensors_are_contiguous_and_apart(name):
    model, ids, states = redraw(make_model(depth=3, loops=2, stream=VARIANTS[name])), make_ids(), []
    for layer in model.layers:
        layer.register_forward_hook(lambda module, args, output: states.append((args[0], output[0])))
    model(ids)
    shapes = {tuple(t.shape for t in tree_leaves(state)) for pair in states for state in pair}
    assert len(states) == 6
    assert len(shapes) == 1
    for state in (states[0][0], states[-1][1]):
        tensors = tree_leaves(state)
        assert all(t.is_contiguous() and len(t) == len(ids) for t in tensors)
        assert len({t.untyped_storage().data_ptr() for t in tensors}) == len(tensors)


@every_variant
def test_observe_sees_the_closed_state(name):
    model, ids, seen = redraw(make_model(depth=2, loops=2, stream=VARIANTS[name])), make_ids(), []
    hidden = model(ids, observe=lambda visit, before, after: seen.append((before, after))).hidden
    assert {t.shape for pair in seen for t in pair} == {(2, 9, 16)}
    assert len(seen) == 4
    assert torch.equal(seen[0][1], seen[1][0])
    assert torch.equal(model.read_out(seen[-1][1]), model.head(hidden, model.head.weight))


@every_variant
def test_gains_act_inside_the_write(name):
    """A write gain multiplies the output, a skip gain all that was there, exactly as without gains."""
    model = redraw(make_model(depth=2, stream=VARIANTS[name]))
    stream, maps = model.stream, model.schedules.banks(model.plan)[1].stream[0]
    state = stream.open(torch.randn(2, 5, 16))
    y, link = stream.read(state, 0, maps)
    gains = SiteGains(write=torch.rand(16), skip=torch.tensor([0.5]))
    close = lambda s: stream.close(s, model.schedules.readout())  # noqa: E731
    regulated = stream.write(state, y, 0, link, gains, maps)
    plain = stream.write(state, gains.write * y, 0, link, SiteGains(), maps)
    kept = stream.write(state, torch.zeros_like(y), 0, link, SiteGains(), maps)
    for got, all_of_it, old in zip(*(tree_leaves(s) for s in (regulated, plain, kept)), strict=True):
        if got.ndim == 2 or torch.equal(got, old):  # which slots are filled; the embedding that is kept aside
            assert torch.equal(got, all_of_it)
        else:
            torch.testing.assert_close(got, all_of_it - 0.5 * old)
    assert close(regulated).shape == y.shape


COMPILED = ["embedding_skip", "hyper", "mhc", "attention_residual"]  # others run the same code


@pytest.mark.parametrize("depth", [12, pytest.param(64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [*COMPILED, pytest.param("hyper_static", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo looks at it
def test_many_layers_compile_to_one_graph_a_grad_mode(name, depth):
    models = [redraw(make_model(depth=depth, dim=8, stream=VARIANTS[name])) for _ in range(2)]
    check_one_graph_a_grad_mode(*models, make_ids(1, 4))


@every_variant
def test_activation_checkpointing_leaves_gradients_as_they_are(name):
    plain, ids = redraw(make_model(depth=2, loops=2, stream=VARIANTS[name])), make_ids()
    again = redraw(make_model(depth=2, loops=2, stream=VARIANTS[name]))
    for layer in again.layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    plain(ids, ids).loss.backward()
    again(ids, ids).loss.backward()
    for (key, a), (_, b) in zip(plain.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(a.grad, b.grad), key


@every_variant
def test_deep_models_stay_finite(name):
    model = make_model(depth=16, loops=4, dim=8, stream=VARIANTS[name])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(2):
        ids = make_ids(1, 8, seed=step)
        optimizer.zero_grad()
        loss = model(ids, ids).loss
        loss.backward()
        optimizer.step()
        assert torch.isfinite(loss)
    assert all(torch.isfinite(p).all() for p in model.parameters())


@every_variant
@pytest.mark.parametrize("placement", ["pre", "post", "reordered", "sandwich", "huginn"])
def test_every_placement_works_or_is_refused(name, placement):
    refused = name.startswith("attention_residual") and placement in {"post", "huginn"}
    if refused:
        with pytest.raises(ValueError, match="norm after the add"):
            make_config(stream=VARIANTS[name], placement=placement)
        return
    model, ids = make_model(stream=VARIANTS[name], placement=placement, norm="layer"), make_ids()
    loss = model(ids, ids).loss
    loss.backward()
    assert torch.isfinite(loss)
