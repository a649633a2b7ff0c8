"""Sparsity and the Curse of Depth (arXiv:2603.15389): the scores of its code, with their faults mended.

Shapes: L visits, E experts.
"""

from __future__ import annotations

import numpy as np

from depthkit.utilization.paper import Found, Paper, by_source, mean, scalar, share
from depthkit.utilization.papers import PAPERS
from depthkit.utilization.result import Scalar
from depthkit.utilization.statistics import Array

USEFUL = 1.1
"""A block is useful when a linear map in its place raises the loss by more than a tenth."""
CAUSAL = "causal_effect.ratio_of_means"


def causal_score(found: Found) -> float:
    """(1 / L) sum over s < L of the mean over l > s of CE(s, l)."""
    sources = by_source(found.matrix(CAUSAL))
    return float(np.nansum(sources) / found.depth) if np.isfinite(sources).any() else float("nan")


@PAPERS.register("sparsity")
class Sparsity(Paper):
    """Causal, permutation and usefulness scores, the mean Jacobian, layer similarity, experts.

    Unlike the released code: states are aligned and taken before the final norm, the linear map is fitted on
    other sequences than it is scored on and is not transposed, and a swapped layer takes its gains along.
    """

    source = "arXiv:2603.15389"
    probes = (
        "stream",
        "causal",
        "swap",
        {"kind": "usefulness", "thresholds": [1.001, 1.01, 1.05, USEFUL, 1.2, 1.5, 2.0]},
        "ablation",
        "mean_jacobian",
        "mean_state_similarity",
        "branch_ablation",
        "experts",
    )
    left_out = {"paper:sparsity elementwise Jacobian": "only the mean over sequences is measured"}

    def aggregate(self, found: Found) -> dict[str, Scalar]:
        """The paper's scores, and the expert scores where there are experts."""
        scores = self._blocks(found) | self._jacobian(found)
        experts = found.result.matrices.get("expert_load.share")
        return scores if experts is None else scores | self._experts(found, experts.values)

    def _blocks(self, found: Found) -> dict[str, Scalar]:
        score = causal_score(found)
        ratios = found.series("usefulness_loss_ratio.held_out")
        useful = share(ratios, ratios > USEFUL)
        variance = found.series("variance.mean")[-1] * found.width / max(found.width - 1, 1)
        return {
            "sparsity_causal_score": scalar(score, "mean over sources of the mean effect on later visits"),
            "sparsity_causal_score.over_sqrt_depth": scalar(
                score / found.depth**0.5, "the same over sqrt(L), which falls with the depth by itself"
            ),
            "sparsity_permutation_score": scalar(
                found.scalar("swap_relative.mean_all_pairs"),
                "|loss difference| / loss of a swap, over all pairs; higher is less interchangeable",
            ),
            "sparsity_usefulness": scalar(useful, f"share of visits with loss ratio above {USEFUL}"),
            "sparsity_effective_depth": scalar(useful * found.depth, "usefulness times the depth"),
            "sparsity_usefulness_ratio.mean": scalar(mean(ratios), "mean of the loss ratios"),
            "sparsity_variance.last": scalar(variance, "unbiased variance over features, last visit"),
        }

    def _jacobian(self, found: Found) -> dict[str, Scalar]:
        diagonal = found.series("mean_jacobian_diagonal.mean")
        similar = found.series("mean_state_similarity_previous.all_tokens")
        distance = found.series("mean_jacobian_distance.over_dim")
        return {
            "sparsity_jacobian_distance.mean": scalar(mean(distance), "||J_mean - I||_F / D, over visits"),
            "sparsity_identity_preservation": scalar(
                share(diagonal, diagonal > 0.5),
                "share of visits whose mean Jacobian has a diagonal above 0.5",
            ),
            "sparsity_layer_similarity.mean": scalar(mean(similar), "cosine of neighbours' mean states"),
        }

    def _experts(self, found: Found, loads: Array) -> dict[str, Scalar]:
        balance = np.maximum(0.0, 1.0 - found.series("expert_load_cv.pooled"))
        rise = found.series("ablation_delta_nats.skip_ffn")[~np.isnan(loads).any(1)]
        importance = np.minimum(rise / (10.0 * found.loss), 1.0)
        return {
            "sparsity_load_balance.mean": scalar(mean(balance), "max(0, 1 - std / mean) of the expert load"),
            "sparsity_expert_importance.mean": scalar(
                mean(importance), "min(rise / (10 loss), 1) without the experts' write, over visits with any"
            ),
            "sparsity_expert_diversity": scalar(
                diversity(loads[~np.isnan(loads).any(1)]), "mean 1 - cos of the loads of two visits"
            ),
        }


def diversity(loads: Array) -> float:
    """Mean over pairs of visits of 1 - cos of their loads `[L, E]`; NaN with fewer than two visits."""
    if len(loads) < 2:
        return float("nan")
    unit = loads / np.linalg.norm(loads, axis=1, keepdims=True)
    return float((1.0 - unit @ unit.T)[np.triu_indices(len(loads), 1)].mean())
