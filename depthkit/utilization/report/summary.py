"""The report in plain sentences, each computed from its numbers; its subject stands before the colon."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from depthkit.utilization.report.report import Report
from depthkit.utilization.statistics import Number

ABLATION = "ablation_delta_nats.skip"
LATER = "causal_effect.ratio_of_means"
LIMITS = (0.01, 0.05)
"""Nats a token within which a layer counts as one that can be skipped."""
DEPTHS = {
    "depth_score.ablation": "the costs of skipping centre on {noun} {value:.1f}",
    "depth_score.mixer_ablation": "those of skipping mixers on {value:.1f}",
    "depth_score.ffn_ablation": "of skipping feed-forwards on {value:.1f}",
    "depth_score.mean_ablation": "of mean writes on {value:.1f}",
    "depth_score.resample_ablation": "of other sequences' writes on {value:.1f}",
    "depth_score.causal": "the effects on later {noun}s on {value:.1f}",
    "depth_score.future": "those on later tokens on {value:.1f}",
    "depth_score.local": "direct ones on {value:.1f}",
    "depth_score.output": "the effects on the output on {value:.1f}",
    "n_eff_entropy.ablation": "{value:.1f} {noun}s count by the entropy of the costs",
    "n_eff_pr.ablation": "{value:.1f} by their participation ratio",
    "useful_frac@1.1": "{value:.0%} of the {noun}s are useful (no linear map can replace them)",
    "lens_depth@0.1": "the lens stays within 0.1 nat after {value:.0%} of the depth",
    "exit_depth@95": "{value:.0f} {noun}s reach 95 % of the final accuracy",
    "droppable@0.01": "{value:.0f} can go together within 0.01 nat",
    "droppable@0.05": "{value:.0f} within 0.05",
}
"""Effective depths, and how the summary calls them; they are different questions and may disagree."""
AGAINST = {
    "depth_score.ablation": "costs centre on {noun} {mine:.1f} instead of {theirs:.1f}",
    "n_eff_entropy.ablation": "{mine:.1f} instead of {theirs:.1f} {noun}s count by the entropy of the costs",
    "depth_score.causal": "effects on later {noun}s centre on {mine:.1f} instead of {theirs:.1f}",
    "lens_depth@0.1": "the lens settles after {mine:.0%} instead of {theirs:.0%} of the depth",
    "exit_depth@95": "the final accuracy is nearly there after {mine:.0f} instead of {theirs:.0f} {noun}s",
}
STATEMENTS = ("Baseline", "Skipping", "Costliest", "Effective depth", "Against chance")
"""What every summary says, in this order, of what was measured."""


def summarise(report: Report) -> list[str]:
    """Sentences for a reader who looks at nothing else; {noun}s count from 0."""
    parts: dict[str, Callable[[Report], str]] = dict(zip(STATEMENTS, _PARTS, strict=True))
    parts |= {"Variance": _growth, "Note": _note}
    return [f"{about}: {sentence}" for about, part in parts.items() if (sentence := part(report))]


def _baseline(report: Report) -> str:
    found, data = report.content["baseline"], report.content["data"]
    low, high = found["ci95"]
    interval = "" if low is None else f", 95 % interval {low:.3f} to {high:.3f}"
    bits = found["bits_per_byte"]
    words = f"perplexity {found['ppl']:.4g}" + (f", {bits:.3f} bits a byte" if bits is not None else "")
    tokens = f"{data['n_tokens_scored']} tokens in {data['n_seq']} windows of {data['seq_len']}"
    return f"loss {found['loss_nats']:.4f} nats a token{interval} ({words}) on {tokens}."


def _skippable(report: Report) -> str:
    costs = [cost for cost, _ in _costs(report)]
    if not costs:
        return ""
    cheap, dear = (within(costs, limit) for limit in LIMITS)
    return (
        f"of {len(costs)} {report.visit_noun}s, {cheap} can be skipped one at a time within {LIMITS[0]} nat "
        f"and {dear} within {LIMITS[1]} nat."
    )


def _costs(report: Report) -> list[tuple[float, int]]:
    if ABLATION not in report.metrics:
        return []
    return [(cost, visit) for visit, cost in enumerate(report.per_visit(ABLATION)) if cost is not None]


def within(costs: list[float], limit: float) -> int:
    """How many cost no more than `limit`."""
    return sum(cost <= limit for cost in costs)


def _costliest(report: Report) -> str:
    top = sorted(_costs(report), reverse=True)[:3]
    rows, several = report.content["per_visit"], report.visit_noun == "visit"
    listed = [
        f"{report.visit_noun} {visit}" + (f" ({rows[visit]['key']})" if several else "") + f" {cost:+.3f} nat"
        for cost, visit in top
    ]
    return f"{', '.join(listed)}." if top else ""


def _depths(report: Report) -> str:
    found = [
        words.format(value=report.scalar(name), noun=report.visit_noun)
        for name, words in DEPTHS.items()
        if report.scalar(name) is not None
    ]
    return f"of {report.depth} {report.visit_noun}s, {'; '.join(found)}." if found else ""


def _against(report: Report) -> str:
    if not report.nulls:
        cost = report.content["timing"]["layer_evals"]
        return f"not measured; null=random_init does, for another {cost:.0f} layer evaluations."
    told = [_beside(report, null) for null in report.nulls.values()]
    return " ".join([told[0], *(f"Next{sentence.removeprefix('next')}" for sentence in told[1:])])


def _beside(report: Report, null: Mapping[str, Any]) -> str:
    loss = report.content["baseline"]["loss_nats"], null["baseline"]["loss_nats"]
    told = [f"loss {loss[0]:.3f} instead of {loss[1]:.3f}", *_skips_beside(report, null)]
    told += [_effect_beside(report, null)] if LATER in report.content["matrices"] else []
    for name, words in AGAINST.items():
        mine, theirs = report.scalar(name), null["scalars"].get(name)
        if mine is not None and theirs is not None:
            told.append(words.format(mine=mine, theirs=theirs, noun=report.visit_noun))
    return f"next to {null['definition']}, {'; '.join(told)}."


def _skips_beside(report: Report, null: Mapping[str, Any]) -> list[str]:
    mine = [cost for cost, _ in _costs(report)]
    theirs = [cost for cost in null["per_visit"].get(ABLATION, {"values": []})["values"] if cost is not None]
    if not mine or not theirs:
        return []
    counts = within(mine, LIMITS[1]), within(theirs, LIMITS[1])
    return [f"{counts[0]} instead of {counts[1]} {report.visit_noun}s can be skipped within {LIMITS[1]} nat"]


def _effect_beside(report: Report, null: Mapping[str, Any]) -> str:
    mine: Number = report.matrix_mean(LATER)
    theirs: Number = null["matrix_means"].get(LATER)
    if mine is None or theirs is None:
        return f"no later {report.visit_noun} to have an effect on"
    return f"a skip changes later writes by {mine:.2f} instead of {theirs:.2f} of their size"


def _growth(report: Report) -> str:
    better = report.scalar("variance_better_fit.mean")
    if better is None:
        return ""
    exponent, rate = (report.scalar(f"variance_{n}.mean") for n in ("power_exponent", "exponential_rate"))
    first, second = (report.scalar(f"variance_{n}.mean") for n in ("power_r2", "exponential_r2"))
    fits = [f"l^{exponent:.2f} (R2 {first:.3f})", f"exp({rate:.3f} l) (R2 {second:.3f})"]
    fits = fits if better == "power" else fits[::-1]
    law = "a power law" if better == "power" else "an exponential"
    return f"the stream's growth fits {law} better, {fits[0]} against {fits[1]}."


def _note(report: Report) -> str:
    note = report.content["model"].get("note")
    return f"{note}." if note else ""


_PARTS = (_baseline, _skippable, _costliest, _depths, _against)
