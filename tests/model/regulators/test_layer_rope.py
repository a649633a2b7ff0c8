"""LayerRoPE against written-out statements of its gains, its twins, and its counts."""

import math

import pytest
import torch

from depthkit.model import account
from depthkit.training.optim import parameter_groups
from tests.model.regulators.ropes import FORMS, STARTS, regulator, rope, rope_model
from tests.models import make_config, make_ids, make_model, redraw


def log_gains(start, total):
    """ln read and ln write at every l and branch, from the formulas."""
    count = 2 * total
    growth = min(100, 1 + count / 4)
    rows = []
    for l in range(1, total + 1):
        for k in (2 * l - 1, 2 * l):  # the mixer and the feed-forward as branches 1..n
            rows.append(
                {
                    "damp_amplify": (-math.log(l) / 2, math.log(l) / 4),
                    "neutral": (0.0, 0.0),
                    "lns": (-math.log(l) / 2, 0.0),
                    "equal_angle": (
                        -math.log(l) / 4,
                        math.log(math.sqrt(growth ** (2 / count) - 1) * growth ** ((k - 1) / count)),
                    ),
                }[start]
            )
    return torch.tensor(rows, dtype=torch.float64).view(total, 2, 2).unbind(-1)


@pytest.mark.parametrize("total", [1, 2, 7, 64, 512])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("start", STARTS)
def test_starts_are_exact_in_every_form(start, form, total):
    model = make_model(depth=1, loops=total, regulators=[rope(init=start, form=form)])
    gains = model.schedules(model.plan)
    read, write = log_gains(start, total)
    assert (gains.read.double().log() - read[..., None]).abs().max() < 1e-6
    assert (gains.write.double().log() - write[..., None]).abs().max() < 1e-6
    assert torch.equal(gains.final, torch.ones(16))


def written_out(parameters, l, total, base=100.0):
    """Read [2, D], write [2, 1] and final [D] in basis form at depth l, from the parameters."""
    g, span = parameters["g"], math.log(max(total, 2))
    turn = parameters.get("psi", torch.zeros(1))
    ghat = []
    for i in range(len(g) // 2):
        angle = turn * base ** (-2 * i / len(g)) * l / total
        ghat.append(angle.cos() * g[2 * i] - angle.sin() * g[2 * i + 1])
        ghat.append(angle.sin() * g[2 * i] + angle.cos() * g[2 * i + 1])
    ghat = torch.cat([*ghat, g[len(g) // 2 * 2 :]])
    power = {
        name: torch.stack([p[0] + p[1] * l / total + p[2] * math.log(l) / span for p in parameters[name]])
        for name in ("read", "write")
    }
    read, write = power["read"].exp()[:, None] * ghat, power["write"].exp()[:, None]
    return read, write, parameters["final"].exp() * g


@pytest.mark.parametrize("rotation", [False, True])
@pytest.mark.parametrize("dim", [16, 7])
def test_gains_of_drawn_parameters_equal_the_formulas_with_gradients(dim, rotation):
    blocks = {"dense": {"mixer": {"kind": "gqa", "num_heads": 1, "head_dim": 4}, "ffn": "gelu"}}
    model = make_model(dim=dim, depth=5, blocks=blocks, regulators=[rope(rotation=rotation)])
    parameters = dict(redraw(regulator(model), 0.2).named_parameters())
    gains = model.schedules(model.plan)
    statements = zip(*(written_out(parameters, l, 5) for l in range(1, 6)), strict=True)
    read, write, final = (torch.stack(rows) for rows in statements)
    pairs = [(gains.read, read), (gains.write, write), (gains.final, final[0])]
    loss = expected = 0.0
    for got, wanted in pairs:
        torch.testing.assert_close(got, wanted)
        direction = torch.randn(wanted.shape)
        loss, expected = loss + (got * direction).sum(), expected + (wanted * direction).sum()
    values = list(parameters.values())
    for a, b in zip(torch.autograd.grad(loss, values), torch.autograd.grad(expected, values), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def tie(plain, g, sites):
    with torch.no_grad():
        for norm in sites(plain):
            norm.weight.copy_(g)
    return plain


def before(model):
    return [n for layer in model.layers for n in (layer.mixer.before, layer.ffn.before)] + [model.final_norm]


def around(model):
    after = [n for layer in model.layers for n in (layer.mixer.after_branch, layer.ffn.after_branch)]
    return before(model) + after


@pytest.mark.parametrize(("placement", "sites"), [("pre", before), ("sandwich", around)])
def test_neutral_equals_norms_whose_gains_are_one_vector(placement, sites):
    """The twin has ordinary norms; the gradient of g is the sum over all of theirs."""
    tied = make_model(depth=3, placement=placement, regulators=[rope(init="neutral")])
    plain = make_model(depth=3, placement=placement)
    g = torch.rand(16) + 0.5
    with torch.no_grad():
        regulator(tied).g.copy_(g)
        weights = {n: 3 * v for n, v in tied.state_dict().items() if "schedules" not in n}
    plain.load_state_dict(weights, strict=False)
    tied.load_state_dict(weights, strict=False)
    tie(plain, g, sites)
    ids = make_ids()
    a, b = tied(ids, ids), plain(ids, ids)
    torch.testing.assert_close(a.hidden, b.hidden, rtol=1e-5, atol=1e-6)
    a.loss.backward()
    b.loss.backward()
    summed = sum(norm.weight.grad for norm in sites(plain))
    torch.testing.assert_close(regulator(tied).g.grad, summed, rtol=1e-4, atol=1e-6)
    for (name, p), (_, q) in zip(tied.layers.named_parameters(), matrices(plain), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-6, msg=name)


def matrices(model):
    return [(name, p) for name, p in model.layers.named_parameters() if p.ndim > 1]


def test_at_gain_one_neutral_equals_no_regulator_bitwise():
    ids = make_ids()
    for placement in ("pre", "sandwich"):
        tied = make_model(placement=placement, regulators=[rope(init="neutral")])
        assert torch.equal(tied(ids).hidden, make_model(placement=placement)(ids).hidden)


def test_lns_start_equals_lns_bitwise():
    ids = make_ids()
    assert torch.equal(
        rope_model(init="lns", form="fixed")(ids).hidden, make_model(depth=4, regulators=["lns"])(ids).hidden
    )


@pytest.mark.parametrize("site", range(9))
def test_gradients_reach_g_from_every_site(site):
    """Of four blocks' eight branches and the final norm, all but one are cut off."""
    model, ids = redraw(rope_model()), make_ids()
    gains = model.schedules(model.plan)
    final = gains.final if site == 8 else gains.final.detach()
    reads = [read if i == site else read.detach() for i, read in enumerate(gains.read.flatten(0, 1))]
    model.schedules.forward = lambda *_: type(gains)(
        read=torch.stack(reads).view(4, 2, 16), write=gains.write.detach(), final=final
    )
    model(ids, ids).loss.backward()
    assert (regulator(model).g.grad != 0).all()


@pytest.mark.parametrize("placement", ["pre", "sandwich"])
@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({}, 16 + 13),
        ({"rotation": True}, 16 + 14),
        ({"form": "table"}, 16 + 4 * 5 + 1),
        ({"form": "fixed"}, 16),
        ({"form": "fixed", "rotation": True}, 17),
        ({"final": False}, 16 + 12),
    ],
)
def test_counts(settings, count, placement):
    model, ids = make_model(depth=5, placement=placement, regulators=[rope(**settings)]), make_ids()
    assert sum(p.numel() for p in model.parameters() if p.ndim < 2 or p.shape[1] < 16) >= 16
    assert sum(p.numel() for p in model.schedules.parameters()) == count
    assert sum(p.numel() for p in model.parameters()) == account(model.config, 9).stored
    assert not any("before" in name or "after" in name or "final_norm" in name for name in model.state_dict())
    model(ids, ids).loss.backward()
    assert all((p.grad != 0).any() for p in model.parameters())


@pytest.mark.parametrize("placement", ["pre", "sandwich"])
def test_it_saves_the_gains_of_all_norms(placement):
    """24 blocks of width 2048: 100,352 gains become 2,061 parameters."""
    sizes = {}
    for kinds in ([], ["layer_rope"]):
        blocks = {"dense": {"mixer": {"kind": "gqa", "num_heads": 16}, "ffn": "gelu"}}
        config = make_config(dim=2048, depth=24, placement=placement, regulators=kinds, blocks=blocks)
        parts = account(config, 9).by_part
        sizes[bool(kinds)] = parts["norms"] + parts.get("schedules", 0)
    assert sizes == {False: 100_352 if placement == "pre" else 198_656, True: 2_061}


def test_rotation_keeps_the_norm_and_depends_on_the_distance_only():
    model = rope_model(depth=9, init="neutral", rotation=True)
    with torch.no_grad():
        regulator(model).g.normal_()
        regulator(model).psi.fill_(0.9)
    vectors = model.schedules(model.plan).read[:, 0].double()
    gram = vectors @ vectors.T
    g = regulator(model).g.double()
    torch.testing.assert_close(gram.diagonal(), g.square().sum().expand(9), rtol=1e-6, atol=0)
    for distance in range(9):
        diagonal = gram.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-6, atol=1e-6)
    assert (gram[0].diff() < 0).all()
    assert torch.equal(model.schedules(model.plan).final, regulator(model).g)


def test_rotation_starts_as_the_identity_and_stays_within_a_third_of_pi():
    assert torch.equal(
        rope_model(rotation=True).schedules(make_config(depth=4).plan()).read,
        rope_model().schedules(make_config(depth=4).plan()).read,
    )
    reads = []
    for psi in (math.pi / 3, 2.0):
        model = rope_model(rotation=True)
        with torch.no_grad():
            regulator(model).g.copy_(torch.linspace(1, 2, 16))
            regulator(model).psi.fill_(psi)
        reads.append(model.schedules(model.plan).read)
        reads[-1].sum().backward()
        assert regulator(model).psi.grad != 0
    torch.testing.assert_close(*reads)


def test_in_sandwich_the_vector_multiplies_what_is_written_too():
    """Segments of both placements: outputs are multiplied by g where a norm stands after the branch."""
    segments = [
        {"name": "a", "pattern": ["dense"], "placement": "sandwich"},
        {"name": "b", "pattern": ["dense"], "repeat": 2, "placement": "pre"},
    ]
    model = make_model(segments=segments, regulators=[rope()])
    g = torch.rand(16) + 0.5
    with torch.no_grad():
        regulator(model).g.copy_(g)
    write = model.schedules(model.plan).write
    torch.testing.assert_close(write[0], g.expand(2, 16))
    for l in (2, 3):
        torch.testing.assert_close(write[l - 1], torch.full((2, 16), l**0.25))


def test_scalars_learn_slower_and_nothing_decays():
    model = make_model(depth=2, regulators=[rope(rotation=True, scalar_lr=0.03)])
    rules = {i.name.rpartition(".")[2]: i for i in model.named_roles() if i.layer is None}
    assert {name: rules[name].rule.lr for name in ("g", "read", "write", "final", "psi")} == {
        "g": 1.0,
        "read": 0.03,
        "write": 0.03,
        "final": 0.03,
        "psi": 0.03,
    }
    scalars = {id(p) for p in regulator(model).parameters()}
    for group in parameter_groups(model):
        if scalars & {id(p) for p in group["params"]}:
            assert group["decay_multiplier"] == 0
    assert rope_model().config.regulators[0].scalar_lr == 0.1
