"""Do Language Models Use Their Depth Efficiently? (Csordás et al., arXiv:2505.13898)

Shapes: L visits.
"""

from __future__ import annotations

import numpy as np

from depthkit.utilization.paper import Found, Paper, scalar
from depthkit.utilization.papers import PAPERS
from depthkit.utilization.result import Scalar
from depthkit.utilization.statistics import Array

EFFECTS = {"later": "causal_effect", "future": "future_effect", "local": "local_effect"}
AGGREGATIONS = {"mean": "ratio_of_means", "max": "max_all_tokens"}
OUTPUTS = {"mean": "output_effect_l2.mean", "max": "output_effect_l2.max_all_tokens"}


@PAPERS.register("csordas")
class Csordas(Paper):
    """Depth scores of the effects on later layers and on the output; contributions, cosines and the lens.

    The paper takes maxima over prompts and tokens, which grow with the sample; means are given beside them.
    It never skips a visit at the first token, which here holds for the future and local effects only.
    """

    source = "arXiv:2505.13898"
    probes = (
        "stream",
        "contribution",
        "branch_contribution",
        "causal",
        "future_effect",
        "local_effect",
        "output_effect",
        "lens",
    )
    left_out = {
        "paper:csordas residual erasure": "replacing states by their mean is not measured",
        "paper:csordas integrated gradients": "not measured",
        "paper:csordas maps between models": "an evaluation reads one model",
    }

    def aggregate(self, found: Found) -> dict[str, Scalar]:
        """sum s e_s / sum e_s with e_s = sum over l > s of E(s, l) / max(L - 1 - s, 1), s from 0."""
        scores = {}
        for effect, metric in EFFECTS.items():
            for aggregation, suffix in AGGREGATIONS.items():
                weights = later(found.matrix(f"{metric}.{suffix}"))
                words = f"centre of mass, in visits, of the effects on later visits ({metric}.{suffix})"
                scores[f"csordas_depth_score_{effect}.{aggregation}"] = scalar(centre(weights), words)
        for aggregation, metric in OUTPUTS.items():
            words = f"centre of mass, in visits, of the effects on the output ({metric})"
            scores[f"csordas_depth_score_output.{aggregation}"] = scalar(centre(found.series(metric)), words)
        return scores


def later(effects: Array) -> Array:
    """e_s `[L]` from E(s, l) `[L, L]`; the last visit has no later one and weighs 0."""
    depth = len(effects)
    return np.nansum(effects, axis=1) / np.maximum(depth - 1 - np.arange(depth), 1)


def centre(weights: Array) -> float:
    """sum s e_s / sum e_s; NaN without any effect."""
    total = float(np.nansum(weights))
    return float(np.nansum(np.arange(len(weights)) * weights) / total) if total > 0 else float("nan")
