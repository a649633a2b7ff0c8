"""The Curse of Depth in Large Language Models (Sun et al., arXiv:2502.05795), with the scores it builds on.

Shapes: L visits.
"""

from __future__ import annotations

import numpy as np

from depthkit.utilization.paper import Found, Paper, mean, scalar
from depthkit.utilization.papers import PAPERS
from depthkit.utilization.result import Scalar
from depthkit.utilization.statistics import number

BLOCKS = (1, 2, 4, 8)
"""Block sizes n whose best start is told."""


@PAPERS.register("lns")
class Lns(Paper):
    """Variance by depth, angular distance of the last token, block influence, and the cost of removal.

    The paper's performance drop is P(without the layer) - P(model) on downstream tasks; here P is the
    accuracy of the next token, and the rise of the perplexity stands beside it.
    """

    source = "arXiv:2502.05795; angular distance arXiv:2403.17887; block influence arXiv:2403.03853"
    probes = ("stream", "angular", "influence", "ablation")
    left_out = {"paper:lns downstream tasks": "accuracy of the next token stands for them"}

    def aggregate(self, found: Found) -> dict[str, Scalar]:
        """Perplexities, performance drop, variance growth, distances by block size, order of influence."""
        return self._removal(found) | self._variance(found) | self._distances(found) | self._order(found)

    def _removal(self, found: Found) -> dict[str, Scalar]:
        rise = np.exp(found.loss + found.series("ablation_delta_nats.skip")) - np.exp(found.loss)
        drop = found.series("ablation_delta_accuracy.skip")
        words = "over layers removed one at a time"
        return {
            "lns_perplexity": scalar(float(np.exp(found.loss)), "exp of the loss a token"),
            "lns_perplexity_rise.mean": scalar(mean(rise), f"rise of the perplexity, mean {words}"),
            "lns_perplexity_rise.median": scalar(_median(rise), f"rise of the perplexity, median {words}"),
            "lns_performance_drop.mean": scalar(
                mean(drop), f"accuracy without the layer minus with, {words}"
            ),
        }

    def _variance(self, found: Found) -> dict[str, Scalar]:
        # The paper's variance is unbiased over the features.
        variance = found.series("variance.mean") * found.width / max(found.width - 1, 1)
        return {
            "lns_variance.last": scalar(variance[-1], "unbiased variance over features after the last visit"),
            "lns_variance_growth": scalar(variance[-1] / variance[0], "last variance over the first"),
        }

    def _distances(self, found: Found) -> dict[str, Scalar]:
        angles = found.matrix("angular_distance.last_token")
        scores = {}
        for n in (n for n in BLOCKS if n <= found.depth):
            column = angles[:, n - 1]
            words = f"angle / pi between states {n} visits apart, last token"
            scores[f"lns_angular_distance@{n}.mean"] = scalar(mean(column), f"{words}, mean over starts")
            start = None if np.isnan(column).all() else int(np.nanargmin(column))
            best = f"first of the {n} visits whose removal the smallest angle suggests, from 0"
            scores[f"lns_best_start@{n}"] = Scalar(start, best)
        return scores

    def _order(self, found: Found) -> dict[str, Scalar]:
        influence = found.series("block_influence.mean")
        order = None if np.isnan(influence).any() else ", ".join(str(i) for i in np.argsort(influence))
        words = "visits from the least block influence to the most: the order of removal"
        return {"lns_influence_order": Scalar(order, words)}


def _median(values: np.ndarray) -> float:
    return float(np.nanmedian(values)) if number(mean(values)) is not None else float("nan")
