"""The loops probe on loops whose convergence is known, and losses at other counts by the model's own forward."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from depthkit.model import unroll
from depthkit.utilization import Sequences, evaluate
from depthkit.utilization.loop_counts import boundaries, loops_needed
from depthkit.utilization.probes.loops import pairs
from depthkit.utilization.sequences import IGNORED
from depthkit.utilization.subject import Place
from tests.models import make_ids, make_model, redraw
from tests.utilization import models

STEPS = ("loop_residual", "loop_contraction", "loop_cosine", "loop_step_cosine")


class Contract(nn.Module):
    """h -> target + rate (h - target): the distance from the fixed point shrinks by `rate` a loop."""

    def __init__(self, rate, dim=models.DIM):
        super().__init__()
        self.rate, self.target = (
            rate,
            nn.Parameter(torch.randn(dim, generator=torch.Generator().manual_seed(3))),
        )

    def forward(self, h):
        return self.target + self.rate * (h - self.target)


def silent(**model):
    """No branch writes, so only what happens between loops moves the state."""
    found = make_model(**model).eval()
    with torch.no_grad():
        for layer in found.layers:
            layer.mixer.branch.o.weight.zero_()
            layer.ffn.branch.down.weight.zero_()
    return found


def looped(loops=3, repeat=2, **core):
    core = {"name": "core", "pattern": ["dense"], "repeat": repeat, "loops": loops, **core}
    ends = [{"name": name, "pattern": ["dense"]} for name in ("prelude", "coda")]
    return redraw(make_model(segments=[ends[0], core, ends[1]]), std=0.4).eval()


@pytest.mark.parametrize("rate", [0.5, -0.25, 1.5])
def test_a_contraction_has_its_rate(rate):
    model, windows = models.Model([Contract(rate)], [0] * 5), models.tokens()
    report = evaluate(model, windows, ["loops"])
    assert report.per_visit("loop_contraction.mean") == [
        None,
        None,
        *[pytest.approx(abs(rate), rel=1e-4)] * 3,
    ]
    assert report.per_visit("loop_step_cosine.mean")[2:] == pytest.approx([np.sign(rate)] * 3, abs=1e-5)
    with torch.no_grad():
        h = [model.embed(windows[:, :-1])]
        for _ in range(5):
            h.append(model.layers[0](h[-1]))
    for loop in range(1, 5):
        now, before = h[loop + 1].double(), h[loop].double()
        residual = float(((now - before).norm(dim=-1) / before.norm(dim=-1)).mean())
        cosine = float(torch.cosine_similarity(now, before, dim=-1).mean())
        assert report.per_visit("loop_residual.mean")[loop] == pytest.approx(residual, rel=1e-4)
        assert report.per_visit("loop_cosine.mean")[loop] == pytest.approx(cosine, rel=1e-4)


def test_a_convex_injection_of_strength_one_halves_the_step():
    """From zero, h_r = (1 - 2^-r) e: steps 1/2, 1/4, 1/8 of e, by the model's own loop machinery."""
    core = {"inject": {"kind": "convex", "start": 1.0}, "state_init": "zero"}
    segments = [{"name": "core", "pattern": ["dense"], "repeat": 2, "loops": 4, **core}]
    model = silent(segments=segments)
    report = evaluate(model, make_ids(3, 8), ["loops"])
    ends = [1, 3, 5, 7]
    found = {name: [report.per_visit(f"{name}.mean")[visit] for visit in ends] for name in STEPS}
    states = [1 - 0.5**r for r in range(1, 5)]
    residuals = [(after - before) / before for before, after in itertools.pairwise(states)]
    assert found["loop_residual"] == [None, *(pytest.approx(r, rel=1e-5) for r in residuals)]
    assert found["loop_contraction"] == [None, None, *[pytest.approx(0.5, rel=1e-4)] * 2]
    assert found["loop_cosine"] == [None, *[pytest.approx(1, rel=1e-5)] * 3]
    assert "never trained past 4 loops" in report.content["scalars"]["loss_nats@loops=8.core"]["definition"]
    again = evaluate(model, make_ids(3, 8), ["loops"])
    assert again.content["scalars"] == report.content["scalars"]
    within = [report.per_visit("loop_residual.mean")[visit] for visit in range(8) if visit not in ends]
    assert within == [None] * 4


def test_tokens_that_become_alike():
    state = torch.tensor([[[1.0, 0], [0, 2], [3, 0]], [[1.0, 1], [2, 2], [9, -9]]])
    mask = torch.tensor([[True] * 3, [True, True, False]])
    sums, counts = pairs(state, mask)
    assert counts.tolist() == [6, 2]
    assert sums.tolist() == pytest.approx([2, 2])
    same = models.Model([Contract(0.0)], [0, 0])
    report = evaluate(same, models.tokens(), ["loops"])
    assert report.per_visit("token_correlation.mean") == pytest.approx([1.0, 1.0])
    far = evaluate(models.Model([models.Identity()], [0, 0]), models.tokens(), ["loops"])
    assert far.per_visit("token_correlation.mean")[0] < 0.6


def test_a_state_that_stands_still_has_no_rate():
    report = evaluate(models.Model([models.Identity()], [0] * 3), models.tokens(), ["loops"])
    assert report.per_visit("loop_residual.mean") == [None, 0.0, 0.0]
    assert report.per_visit("loop_contraction.mean") == [None] * 3


def test_losses_at_other_counts_are_the_models_own():
    model, ids = looped(), make_ids(5, 8)
    report = evaluate(model, ids, ["loops"], batch_tokens=16)
    for count in (1, 2, 3, 6):
        nats = model.token_losses(ids[:, :-1], ids[:, 1:], loops={"core": count})
        assert report.scalar(f"loss_nats@loops={count}.core") == pytest.approx(float(nats.mean()), rel=1e-5)
    assert report.scalar("loss_nats@loops=3.core") == pytest.approx(report.content["baseline"]["loss_nats"])
    exits = report.per_visit("loop_exit_loss_nats.mean")
    for visit, count in {2: 1, 4: 2, 6: 3}.items():
        assert exits[visit] == report.scalar(f"loss_nats@loops={count}.core")
    assert [exits[visit] for visit in (0, 1, 3, 5, 7)] == [None] * 5
    assert report.content["timing"]["layer_evals"] == 8 + 4 + 6 + 14
    assert report.sample("loop_exit_loss_nats.mean").sums.shape == (8, 5)
    np.testing.assert_allclose(
        report.arrays["loss_by_loops_nats.core"],
        [[report.scalar(f"loss_nats@loops={count}.core") for count in (1, 2, 3, 6)]],
    )


def test_counts_are_a_setting():
    report = evaluate(looped(), make_ids(2, 6), [{"kind": "loops", "counts": [5, 2]}])
    assert {n for n in report.content["scalars"] if n.startswith("loss")} == {
        "loss_nats@loops=2.core",
        "loss_nats@loops=5.core",
    }
    assert report.scalar("loops_needed@0.01.core") is None
    with pytest.raises(ValueError, match="counts"):
        evaluate(looped(), make_ids(2, 6), [{"kind": "loops", "counts": [0]}])


def test_segments_are_run_one_at_a_time():
    segments = [
        {"name": name, "pattern": ["dense"], "loops": loops} for name, loops in (("first", 2), ("second", 3))
    ]
    model, ids = redraw(make_model(segments=segments), std=0.4).eval(), make_ids(2, 6)
    report = evaluate(model, ids, ["loops"])
    nats = model.token_losses(ids[:, :-1], ids[:, 1:], loops={"second": 6})
    assert report.scalar("loss_nats@loops=6.second") == pytest.approx(float(nats.mean()), rel=1e-5)
    assert report.scalar("loss_nats@loops=2.first") == report.scalar("loss_nats@loops=3.second")


def test_padding_and_micro_batches_do_not_matter():
    model, ids = looped(), make_ids(4, 9)
    inputs, targets = ids[:, :-1], ids[:, 1:]
    pad = torch.zeros(4, 3, dtype=torch.int64)
    padded = Sequences.of_targets(torch.cat([inputs, pad], 1), torch.cat([targets, pad + IGNORED], 1))
    plain, other = evaluate(model, ids, ["loops"]), evaluate(model, padded, ["loops"], batch_tokens=11)
    for name in plain.metrics:
        one, same = (np.array(report.per_visit(name), float) for report in (plain, other))
        np.testing.assert_allclose(same, one, rtol=1e-4, err_msg=name)
    for name in plain.content["scalars"]:
        assert other.scalar(name) == pytest.approx(plain.scalar(name), rel=1e-5), name


def reasons(report):
    return {entry["metric"]: entry["reason"] for entry in report.content["skipped"]}


def test_what_has_no_loops_says_so():
    for model, windows in ((make_model(), make_ids()), (models.mixing(1), models.tokens())):
        report = evaluate(model, windows, ["loops"])
        assert reasons(report) == {"loops": "no segment of this model is looped"}
        assert not report.metrics


def test_what_cannot_be_run_for_other_counts_says_so():
    unrolled = evaluate(unroll(looped()), make_ids(2, 6), ["loops"])
    assert "unrolled" in reasons(unrolled)["loss_by_loops[core@1]"]
    assert unrolled.scalar("loss_nats@loops=1.core") is None
    assert unrolled.per_visit("loop_residual.mean")[4] is not None
    other = evaluate(models.mixing(1, order=[0, 0]), models.tokens(), ["loops"])
    assert "own models" in reasons(other)["loss_by_loops[layers]"]
    unshared = evaluate(looped(shared=False), make_ids(2, 6), ["loops"])
    assert "1 to 3 times, not 6" in reasons(unshared)["loss_by_loops[core@6]"]
    assert unshared.scalar("loss_nats@loops=2.core") is not None


def test_two_loops_have_no_contraction():
    report = evaluate(looped(loops=2), make_ids(2, 6), ["loops"])
    assert "three loops" in reasons(report)["loop_contraction"]
    assert report.per_visit("loop_contraction.mean") == [None] * 6


def test_one_token():
    report = evaluate(looped(), make_ids(1, 2), ["loops"])
    assert report.per_visit("token_correlation.mean") == [None] * 8
    assert report.per_visit("loop_residual.mean_no_token0") == [None] * 8


def test_boundaries_need_whole_loops():
    def places(*keys):
        return [Place(segment, loop, slot, slot, "dense") for segment, loop, slot in keys]

    whole = places(("a", 0, 0), ("b", 0, 0), ("b", 0, 1), ("b", 1, 0), ("b", 1, 1), ("c", 0, 0))
    assert boundaries(whole) == ({"b": [2, 4]}, {})
    ends, found = boundaries(places(("l", 0, 0), ("l", 0, 1), ("l", 1, 1), ("l", 0, 2)))
    assert ends == {}
    assert "not all of them in turn" in found["l"]
    report = evaluate(models.mixing(3, order=[0, 1, 1, 2]), models.tokens(), ["loops"])
    assert "not all of them" in reasons(report)["loops"]


@pytest.mark.parametrize(
    ("losses", "needed"),
    [([3.0, 2.0, 1.0], 3), ([1.0, 1.0, 1.0], 1), ([1.0, 2.0, 1.0], 3), ([2, 1.005, 1], 2)],
)
def test_loops_needed(losses, needed):
    assert loops_needed([1, 2, 3, 6], [*losses, 9.0], 3) == needed
    assert loops_needed([1, 2, 3], [*losses[:2], None], 3) is None
