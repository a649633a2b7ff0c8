"""The report in plain sentences, each computed from its numbers."""

from __future__ import annotations

from depthkit.utilization.report.report import Report

ABLATION = "ablation_delta_nats.skip"
DEPTHS = {
    "depth_score.ablation": "centre of mass of the skip costs at {noun} {value:.1f}",
    "depth_score.causal": "centre of mass of the effects on later {noun}s at {noun} {value:.1f}",
    "n_eff_entropy.ablation": "{value:.1f} {noun}s by the entropy of the skip costs",
    "n_eff_pr.ablation": "{value:.1f} by their participation ratio",
    "lens_depth@0.1": "{value:.0%} of the depth until the lens stays within 0.1 nat of the final prediction",
    "exit_depth@95": "{value:.0f} {noun}s for 95 % of the final accuracy",
}


def summarise(report: Report) -> list[str]:
    """Sentences for a reader who looks at nothing else; {noun}s count from 0."""
    parts = (_baseline(report), _skippable(report), _costliest(report), _depths(report), _growth(report))
    return [sentence for sentence in parts if sentence]


def _baseline(report: Report) -> str:
    found, data = report.content["baseline"], report.content["data"]
    low, high = found["ci95"]
    interval = "" if low is None else f", 95 % interval {low:.3f} to {high:.3f}"
    tokens = f"{data['n_tokens_scored']} tokens in {data['n_seq']} windows of {data['seq_len']}"
    return (
        f"Loss {found['loss_nats']:.4f} nats a token (perplexity {found['ppl']:.4g}{interval}) on {tokens}."
    )


def _costs(report: Report) -> list[tuple[float, int]]:
    if ABLATION not in report.metrics:
        return []
    return [(cost, visit) for visit, cost in enumerate(report.per_visit(ABLATION)) if cost is not None]


def _skippable(report: Report) -> str:
    costs = [cost for cost, _ in _costs(report)]
    if not costs:
        return ""
    cheap, dear = (sum(cost <= limit for cost in costs) for limit in (0.01, 0.05))
    return (
        f"Of {len(costs)} {report.visit_noun}s, {cheap} can be skipped one at a time within 0.01 nat "
        f"and {dear} within 0.05 nat."
    )


def _costliest(report: Report) -> str:
    top = sorted(_costs(report), reverse=True)[:3]
    if not top:
        return ""
    listed = ", ".join(f"{report.visit_noun} {visit} ({cost:+.3f} nat)" for cost, visit in top)
    return f"Costliest to skip: {listed}."


def _depths(report: Report) -> str:
    found = [
        words.format(value=report.scalar(name), noun=report.visit_noun)
        for name, words in DEPTHS.items()
        if report.scalar(name) is not None
    ]
    return f"Effective depth (of {report.depth} {report.visit_noun}s): {'; '.join(found)}." if found else ""


def _growth(report: Report) -> str:
    better = report.scalar("variance_better_fit.mean")
    if better is None:
        return ""
    exponent, rate = (report.scalar(f"variance_{n}.mean") for n in ("power_exponent", "exponential_rate"))
    first, second = (report.scalar(f"variance_{n}.mean") for n in ("power_r2", "exponential_r2"))
    fits = [f"l^{exponent:.2f} (R2 {first:.3f})", f"exp({rate:.3f} l) (R2 {second:.3f})"]
    fits = fits if better == "power" else fits[::-1]
    law = "a power law" if better == "power" else "an exponential"
    return f"The stream's variance fits {law} better: {fits[0]} against {fits[1]}."
