"""DepthBench (arXiv:2609.32534): its causal score with the depth in it, and its shares of late pairs.

Shapes: L visits.
"""

from __future__ import annotations

import numpy as np

from depthkit.utilization.paper import Found, Paper, mean, scalar, share
from depthkit.utilization.papers import PAPERS
from depthkit.utilization.papers.sparsity import CAUSAL, USEFUL, causal_score
from depthkit.utilization.result import Scalar
from depthkit.utilization.statistics import Array

LATE = 0.25
"""Where the last three quarters of the visits begin."""
CAUSAL_LIMIT, SWAP_LIMIT = 0.45, 0.15


@PAPERS.register("depthbench")
class DepthBench(Paper):
    """Causal score over sqrt(L), late pairs that depend on each other, angles over all tokens, the Jacobian.

    A linear map is scored here on other sequences than it is fitted on. A swapped layer takes its gains
    along, as in the paper.
    """

    source = "arXiv:2609.32534"
    probes = (
        "causal",
        "swap",
        {"kind": "usefulness", "thresholds": [1.001, 1.01, 1.05, USEFUL, 1.2, 1.5, 2.0]},
        "angular",
        "mean_jacobian",
        "ablation",
    )

    def aggregate(self, found: Found) -> dict[str, Scalar]:
        """The paper's numbers for the whole model."""
        ratios = found.series("usefulness_loss_ratio.held_out")
        angles = found.matrix("angular_distance.all_tokens")[:, 0]
        distance = found.series("mean_jacobian_distance.over_sqrt_dim")
        return {
            "depthbench_causal_score": scalar(
                causal_score(found) / found.depth**0.5,
                "L^-1/2 (1/L) sum over s of mean over l > s of CE(s, l)",
            ),
            "depthbench_late_pairs_causal": scalar(
                _late(found.matrix(CAUSAL), CAUSAL_LIMIT),
                f"share of pairs in the last three quarters with a causal effect above {CAUSAL_LIMIT}",
            ),
            "depthbench_late_pairs_swap": scalar(
                _late(found.matrix("swap_relative.pairs"), SWAP_LIMIT),
                f"share of (tested) pairs in the last three quarters whose swap costs above {SWAP_LIMIT}",
            ),
            "depthbench_usefulness": scalar(
                share(ratios, ratios > USEFUL), f"share of visits with loss ratio above {USEFUL}"
            ),
            "depthbench_angular_distance.mean": scalar(
                mean(angles), "angle / pi between neighbouring states, over all tokens and visits"
            ),
            "depthbench_jacobian_distance.mean": scalar(
                mean(distance), "||J_mean - I||_F / sqrt(D), over visits"
            ),
        }


def _late(pairs: Array, limit: float) -> float:
    """Share of the defined pairs (both in the last three quarters) that are above a limit."""
    first = int(np.ceil(LATE * len(pairs)))
    late = pairs[first:, first:]
    with np.errstate(invalid="ignore"):
        return share(late, late > limit)
