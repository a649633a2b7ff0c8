"""How unevenly the weights of a layer are spread, from the weights alone.

Thresholds are relative to a matrix's own root mean square: an absolute one would measure its scale.
Sources: Hoyer's sparsity and the Gini index, arXiv:0811.4706; stable rank, arXiv:math/0503442.

Shapes: E stacked matrices of M x N.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from depthkit.registry import Spec
from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.probes import PROBES
from depthkit.utilization.result import Matrix, Result, Scalar, Series
from depthkit.utilization.statistics import Array, numbers

SHAPE = {
    "weight_hoyer": (
        "ratio",
        "Hoyer's sparsity (sqrt n - |w|_1 / |w|_2) / (sqrt n - 1): 0 all alike, 1 a single one",
    ),
    "weight_gini": ("ratio", "Gini index of |w|: 0 all alike, towards 1 a single one"),
    "stable_rank": ("ratio", "|W|_F^2 / |W|_2^2, between 1 and the rank"),
}


@PROBES.register("weight_sparsity")
class WeightSparsity(Probe):
    """Share of near-zero weights, Hoyer, Gini and stable rank of every parameter of every stored layer.

    Stacked expert matrices count one by one. Per layer it is the mean weighted by size, in which vectors
    (norm gains, biases) have their small part; visits of one layer share the value.
    """

    class Config(Spec):
        """Settings of `weight_sparsity`."""

        thresholds: list[float] = Field([1e-3, 1e-2, 1e-1], min_length=1)
        """A weight is near zero below this times the root mean square of its matrix."""

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        self._metrics = {
            f"weight_below@{tau:g}": ("fraction", f"share of weights with |w| < {tau:g} rms(w)")
            for tau in config.thresholds
        } | SHAPE

    def compute(self) -> Result:
        """Series by layer, a matrix (layer, parameter) of every metric, and how much was covered."""
        layers = self.context.subject.layers
        names = list(dict.fromkeys(name for layer in layers for name, _ in layer.named_parameters()))
        found = np.full((len(self._metrics), len(layers), len(names)), np.nan)
        sizes = np.zeros((len(layers), len(names)))
        for row, layer in enumerate(layers):
            for name, parameter in _measurable(layer):
                column = names.index(name)
                found[:, row, column] = list(self._measure(parameter).values())
                sizes[row, column] = parameter.numel()
        return self._result(found, sizes, names)

    def _measure(self, parameter: Tensor) -> dict[str, float]:
        stack = matrices(parameter)
        values = [
            [below(matrix, tau) for tau in self.config.thresholds] + [hoyer(matrix), gini(matrix)]
            for matrix in stack
        ]
        ranks = [stable_rank(matrix) if parameter.ndim > 1 else math.nan for matrix in stack]
        table = np.column_stack([np.array(values), np.array(ranks)])
        return dict(zip(self._metrics, _mean(table, np.ones(len(table))[:, None], 0), strict=True))

    def _result(self, found: Array, sizes: Array, names: list[str]) -> Result:
        result = Result()
        legend = "parameter: " + ", ".join(f"{i} {name}" for i, name in enumerate(names))
        for (name, (unit, words)), values in zip(self._metrics.items(), found, strict=True):
            result.matrices[f"{name}.by_parameter"] = Matrix(values, "layer", legend, unit, words)
            layers = _mean(values, sizes, 1)
            visits = numbers([layers[place.layer] for place in self.context.places])
            result.per_visit[f"{name}.layer"] = Series(visits, unit, f"{words}, mean over the layer by size")
        self._coverage(result, float(sizes.sum()))
        return result

    def _coverage(self, result: Result, covered: float) -> None:
        parameters = {id(p): p for layer in self.context.subject.layers for p in layer.parameters()}
        total = sum(parameter.numel() for parameter in parameters.values())
        share = covered / total if total else None
        result.scalars["param_coverage"] = Scalar(share, "share of the layers' parameters that were measured")
        if share is not None and share < 1:
            result.skipped["param_coverage"] = (
                f"{1 - share:.1%} of the layers' parameters are not floating-point numbers in memory"
            )


def _measurable(layer: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in layer.named_parameters():
        if parameter.is_floating_point() and not parameter.is_meta and parameter.numel():
            yield name, parameter.detach()


def matrices(parameter: Tensor) -> Tensor:
    """A parameter as a stack `[E, M, N]`: experts one by one, a vector as one row, kernels flattened."""
    if parameter.ndim < 3:
        return parameter.reshape(1, -1, parameter.shape[-1] if parameter.ndim else 1).float()
    return parameter.flatten(2).float()


def below(w: Tensor, tau: float) -> float:
    """Share of entries under tau times the root mean square; of zeros alone, 1."""
    limit = tau * w.double().square().mean().sqrt()
    return float(((w.abs() < limit) | (limit == 0)).double().mean())


def hoyer(w: Tensor) -> float:
    """Hoyer's sparsity; NaN for a single entry and for zeros."""
    root, size = math.sqrt(w.numel()), float(w.double().norm())
    return (root - float(w.double().abs().sum()) / size) / (root - 1) if size and root > 1 else math.nan


def gini(w: Tensor) -> float:
    """Gini index 1 - 2 sum_k (|w|_(k) / |w|_1) (n - k + 1/2) / n over ascending |w|; NaN for zeros."""
    ascending = w.abs().flatten().sort().values.double()
    count, total = len(ascending), float(ascending.sum())
    rank = torch.arange(count, 0, -1, device=w.device, dtype=torch.float64) - 0.5
    return 1 - 2 * float(ascending @ rank) / count / total if total else math.nan


def stable_rank(w: Tensor) -> float:
    """|W|_F^2 / |W|_2^2 from the largest eigenvalue of the smaller Gram matrix; NaN for zeros."""
    tall = w if w.shape[0] >= w.shape[1] else w.T
    gram = tall.T @ tall
    largest = float(torch.linalg.eigvalsh(gram)[-1])
    return float(gram.trace()) / largest if largest > 0 else math.nan


def _mean(values: Array, weights: Array, axis: int) -> Array:
    """Weighted mean of what is defined; NaN where nothing is."""
    weights = np.where(np.isnan(values), 0.0, np.broadcast_to(weights, values.shape))
    with np.errstate(invalid="ignore"):
        return np.where(np.isnan(values), 0.0, values * weights).sum(axis) / weights.sum(axis)
