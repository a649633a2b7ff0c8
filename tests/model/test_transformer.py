"""The whole model against an independent statement of it, and its contracts."""

from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F

from depthkit.model import Transformer, unroll
from depthkit.model.placement import PLACEMENTS
from depthkit.model.roles import MATRICES
from depthkit.model.walk import Inputs
from tests.models import make_config, make_ids, make_model, redraw


def rms(x, weight, eps=1e-6):
    return weight * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def naive(model, ids):
    """Pre-LN transformer with MQA, two heads, written out from its state dict."""
    w = dict(model.named_parameters())
    x = w["embed.weight"][ids]
    time, head = ids.shape[1], 8
    frequency = 1e4 ** (-torch.arange(0, head, 2) / head)
    turn = torch.polar(torch.ones(time, head // 2), torch.outer(torch.arange(float(time)), frequency))

    def rope(t):
        turned = torch.complex(t[..., : head // 2], t[..., head // 2 :]) * turn
        return torch.cat([turned.real, turned.imag], -1)

    for index in range(len(model.layers)):
        p = f"layers.{index}."
        h = rms(x, w[p + "mixer.before.weight"])
        q = torch.stack([rope(t) for t in (h @ w[p + "mixer.branch.q.weight"].T).split(head, -1)], 1)
        k = rope(h @ w[p + "mixer.branch.k.weight"].T)[:, None]
        v = (h @ w[p + "mixer.branch.v.weight"].T)[:, None]
        scores = (q @ k.transpose(-1, -2) / head**0.5).masked_fill(
            torch.ones(time, time).triu(1).bool(), -torch.inf
        )
        y = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = x + y @ w[p + "mixer.branch.o.weight"].T
        h = rms(x, w[p + "ffn.before.weight"])
        gate, up = h @ w[p + "ffn.branch.gate.weight"].T, h @ w[p + "ffn.branch.up.weight"].T
        x = x + (gate * gate.sigmoid() * up) @ w[p + "ffn.branch.down.weight"].T
    return rms(x, w["final_norm.weight"]) @ w["head.weight"].T


def test_forward_and_gradients_equal_the_written_out_model():
    model, ids = redraw(make_model(depth=3)), make_ids()
    targets = ids.roll(-1, 1)
    expected = F.cross_entropy(naive(model, ids).flatten(0, 1), targets.flatten())
    output = model(ids, targets)
    torch.testing.assert_close(output.loss, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        model.head(output.hidden, model.head.weight), naive(model, ids), rtol=1e-4, atol=1e-4
    )
    parameters = list(model.parameters())
    for a, b in zip(
        torch.autograd.grad(output.loss, parameters), torch.autograd.grad(expected, parameters), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def block_by_hand(model, x, ids, placement):
    """One layer's two branches with norms where the placement says, by calling its parts."""
    block = model.layers[0]
    contexts = block.prepare(Inputs(ids))
    for site, ctx in zip((block.mixer, block.ffn), contexts, strict=True):
        h = rms(x, site.before.weight) if placement.before_branch else x
        y = site.branch(h, ctx)[0]
        y = rms(y, site.after_branch.weight) if placement.after_branch else y
        x = x + y
        x = rms(x, site.after_add.weight) if placement.after_add else x
    return x


@pytest.mark.parametrize("name", PLACEMENTS)
def test_placements_normalise_where_they_say(name):
    model, ids = redraw(make_model(depth=1, placement=name)), make_ids()
    seen = []
    with torch.no_grad():
        model(ids, observe=lambda visit, before, after: seen.append((before, after)))
        expected = block_by_hand(model, seen[0][0], ids, PLACEMENTS[name])
    torch.testing.assert_close(seen[0][1], expected, rtol=1e-4, atol=1e-5)


def test_a_placement_may_be_a_triple():
    ids = make_ids()
    by_name, by_triple = make_model(placement="sandwich"), make_model(placement=[1, 1, 0])
    assert torch.equal(by_name(ids).hidden, by_triple(ids).hidden)


def test_segments_may_differ_in_placement_norm_and_regulators():
    segments = [
        {"name": "post", "pattern": ["dense"], "placement": "post", "norm": "layer", "regulators": []},
        {"name": "pre", "pattern": ["dense"], "repeat": 2},
    ]
    model = make_model(segments=segments, regulators=["lns"])
    assert type(model.layers[0].mixer.after_add).__name__ == "LayerNorm"
    assert type(model.layers[1].mixer.before).__name__ == "RMSNorm"
    reads = model.schedules(model.plan).read[:, 0, 0]
    torch.testing.assert_close(reads, torch.tensor([1.0, 2**-0.5, 3**-0.5]))


@pytest.mark.parametrize("loops", [1, 3])
def test_looped_equals_tied_unrolled(loops):
    looped, ids = redraw(make_model(depth=2, loops=loops, regulators=["lns"])), make_ids()
    flat = unroll(looped)
    assert len(flat.layers) == 2 * loops
    assert flat.plan.visits[-1].key == looped.plan.visits[-1].key
    a, b = looped(ids, ids), flat(ids, ids)
    assert torch.equal(a.hidden, b.hidden)
    assert torch.equal(a.loss, b.loss)
    a.loss.backward()
    b.loss.backward()
    summed = {}
    for visit in looped.plan.visits:
        for name, parameter in flat.layers[visit.index].named_parameters():
            summed[f"layers.{visit.layer}.{name}"] = (
                summed.get(f"layers.{visit.layer}.{name}", 0) + parameter.grad
            )
    for name, total in summed.items():
        torch.testing.assert_close(dict(looped.named_parameters())[name].grad, total, rtol=1e-4, atol=1e-7)


def test_tied_embeddings_are_one_parameter_and_get_both_gradients():
    model, ids = make_model(head={"kind": "lm", "tied": True}), make_ids()
    assert "head.weight" not in model.state_dict()
    untied = make_model()
    untied.load_state_dict({**model.state_dict(), "head.weight": model.embed.weight.detach().clone()})
    model(ids, ids).loss.backward()
    untied(ids, ids).loss.backward()
    torch.testing.assert_close(model.embed.weight.grad, untied.embed.weight.grad + untied.head.weight.grad)


def test_meta_construction_then_reset_equals_direct_construction():
    config = make_config(regulators=["lns", "scaled_init"], norm="layer")
    with torch.device("meta"):
        model = Transformer(config, seed=3)
    model = model.to_empty(device="cpu")
    model.reset_parameters(3)
    for (name, a), (_, b) in zip(
        model.state_dict().items(), Transformer(config, seed=3).state_dict().items(), strict=True
    ):
        assert torch.equal(a, b), name
    ids = make_ids()
    assert torch.equal(model(ids).hidden, Transformer(config, seed=3)(ids).hidden)


def test_a_layer_starts_the_same_whatever_the_depth():
    shallow, deep = make_model(seed=5, depth=2), make_model(seed=5, depth=6)
    for name, value in shallow.state_dict().items():
        assert torch.equal(value, deep.state_dict()[name]), name
    assert not torch.equal(make_model(seed=6).embed.weight, shallow.embed.weight)


def test_every_matrix_is_drawn_on_its_own():
    model = make_model(depth=3, dim=32)
    by_shape = {}
    for info in model.named_roles():
        if info.role in MATRICES | {"embed"}:
            by_shape.setdefault(info.parameter.shape, []).append(info.parameter.detach().flatten())
    assert max(len(drawn) for drawn in by_shape.values()) >= 6
    for drawn in by_shape.values():
        if len(drawn) > 1:
            correlations = torch.corrcoef(torch.stack(drawn)).fill_diagonal_(0)
            assert correlations.abs().max() < 0.25


def test_init_kinds_have_the_std_they_say():
    wide = {"dim": 64, "vocab": 500, "depth": 1}
    fan_in = make_model(embedding_std=1.0, **wide)
    normal = make_model(init={"kind": "normal", "std": 0.05}, **wide)
    assert abs(fan_in.embed.weight.std() - 1.0) < 0.02
    assert abs(fan_in.layers[0].mixer.branch.q.weight.std() * 8 / 0.64 - 1) < 0.05
    assert abs(normal.layers[0].ffn.branch.down.weight.std() / 0.05 - 1) < 0.05
    assert abs(normal.embed.weight.std() / 0.02 - 1) < 0.05


def test_every_parameter_has_a_role_a_place_and_a_rule():
    model = make_model(depth=2, regulators=["scaled_init"], norm="layer")
    infos = list(model.named_roles())
    assert [i.name for i in infos] == [name for name, _ in model.named_parameters()]
    by_name = {i.name: i for i in infos}
    down = by_name["layers.1.ffn.branch.down.weight"]
    assert (down.layer, down.branch, down.role, down.rule.init) == (1, "ffn", "down", 0.5)
    assert by_name["embed.weight"].role == "embed"
    assert by_name["layers.0.mixer.before.bias"].role == "bias"
    assert by_name["layers.0.mixer.branch.q.weight"].rule.init == 1.0


def test_observe_sees_every_visit_in_order_with_graph():
    model, ids, seen = make_model(depth=2, loops=2), make_ids(), []
    model(ids, observe=lambda visit, before, after: seen.append((visit, before, after)))
    assert [v for v, _, _ in seen] == list(model.plan.visits)
    assert all(torch.equal(a[2], b[1]) for a, b in pairwise(seen))
    assert seen[-1][2].requires_grad


def test_unscored_targets_count_nowhere():
    model, ids = make_model(), make_ids()
    targets = ids.clone()
    targets[:, ::2] = -100
    output = model(ids, targets)
    losses = model.token_losses(ids, targets)
    assert output.num_scored == (targets != -100).sum()
    torch.testing.assert_close(losses.sum() / output.num_scored, output.cross_entropy)
    assert (losses[:, ::2] == 0).all()
    assert model(ids, torch.full_like(ids, -100)).loss == 0


def test_z_loss_adds_the_squared_log_partition():
    ids = make_ids()
    plain, z = make_model(), make_model(head={"kind": "lm", "z_loss": 0.1})
    logits = plain.head(plain(ids).hidden, plain.head.weight)
    extra = 0.1 * logits.logsumexp(-1).square().mean()
    torch.testing.assert_close(z(ids, ids).loss, plain(ids, ids).loss + extra)
    torch.testing.assert_close(z(ids, ids).cross_entropy, plain(ids, ids).cross_entropy)


def test_read_out_of_the_last_state_is_the_logits():
    model, ids, last = redraw(make_model(final_norm="layer")), make_ids(), []
    hidden = model(ids, observe=lambda visit, before, after: last.append(after)).hidden
    assert torch.equal(model.read_out(last[-1]), model.head(hidden, model.head.weight))
    assert not torch.equal(last[-1], hidden)


def test_bf16_autocast_keeps_the_stream_in_fp32():
    model, ids, states = make_model(dim=32, regulators=["lns"]), make_ids(), []
    with torch.autocast("cpu", torch.bfloat16):
        output = model(ids, ids, observe=lambda visit, before, after: states.append(after))
    output.loss.backward()
    assert {s.dtype for s in states} == {torch.float32}
    assert output.loss.dtype == torch.float32
    torch.testing.assert_close(output.loss, model(ids, ids).loss, rtol=1e-2, atol=0)
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())


def test_without_a_vocabulary_there_is_no_model():
    config = make_config(vocab=None)
    with pytest.raises(ValueError, match="vocab_size"):
        Transformer(config)
