"""Results of a ladder as its rungs would have left them, with losses that are chosen."""

from depthkit import config as c
from depthkit.ladder.cost import counts
from depthkit.ladder.results import Results, Row
from depthkit.ladder.state import FINISHED, State
from depthkit.utilization import Report
from tests.ladder.ladders import ladder_dict


def make_results(loss, curve=None, failed=(), **change):
    """Results in which `loss(place)` is a rung's loss and `curve(place)` its (step, loss) on the way."""
    raw = ladder_dict(**{"compare": [{"axis": "method", "baseline": "plain"}], **change})
    raw["run"]["model"]["vocab_size"] = 300
    ladder = c.parse(raw)
    rows = [
        Row(rung, State("failed", error="no luck"))
        if rung.name in failed
        else _row(rung, loss(rung.place), curve(rung.place) if curve else ())
        for rung in ladder.rungs()
    ]
    return Results(ladder, rows)


def _row(rung, loss, curve):
    depth = rung.config.model.plan().depth
    report = Report(_content(loss, depth), {})
    evaluated = tuple({"event": "validation", "step": step, "val_loss": value} for step, value in curve)
    train = tuple({"event": "train", "step": step, "loss": loss + 1 / step} for step in range(1, 5))
    end = {"event": "end", "step": 4, "val_loss": loss, "bits_per_byte": None}
    return Row(rung, State(FINISHED), report, (*train, *evaluated, end), counts(rung.config))


def _content(loss, depth):
    metrics = ("variance.mean", "ablation_delta_nats.skip", "later_effect.ratio_of_means")
    visits = [dict.fromkeys(metrics, (v + 1.0) / depth) | {"visit": v, "ci95": {}} for v in range(depth)]
    return {
        "baseline": {"loss_nats": loss},
        "per_visit": visits,
        "metrics": {name: {} for name in metrics},
        "scalars": {"n_eff_entropy.ablation": {"value": depth / 2}, "ablate_frac@0.01": {"value": 0.5}},
        "model": {"name": "x", "num_layers": depth},
    }
