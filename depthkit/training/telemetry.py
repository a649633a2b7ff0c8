"""What happens at every visit of a training step: the stream, what is written to it, and its gradient.

Measured on the first micro-batch of a step. Values of the stream come from at most `SAMPLE` of its tokens,
evenly spaced, which keeps the cost well below half a step; gradient norms use all tokens.

Shapes: B batch, T time, D width, N sampled tokens, V visits.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from depthkit.model import Transformer, Visit
from depthkit.model.transformer import Observe
from depthkit.training.expert_telemetry import ExpertTelemetry
from depthkit.training.parallel.norms import total_norm
from depthkit.training.parallel.ranks import ALONE, Ranks

SAMPLE = 256
"""Tokens of a micro-batch whose states are measured."""

CHUNK = 16
"""Visits measured in one go."""

PER_VISIT = ("variance", "write_ratio", "angle", "stream_grad_norm")
PER_LAYER = ("layer_grad_norm",)


class DepthTelemetry:
    """Collects one step's measurements; after the backward pass `row()` has them.

    Args:
        sample: tokens whose states are measured.
    """

    def __init__(self, sample: int = SAMPLE):
        self.sample = sample
        self._ranks = ALONE
        self._states: list[tuple[Tensor, Tensor]] = []
        self._stream_norms: dict[int, Tensor] = {}
        self._layer_norms: list[Tensor] = []
        self.experts: ExpertTelemetry | None = None
        """What the routers did in the same micro-batch, where there are any."""

    def watch(self, weight: float, ranks: Ranks = ALONE) -> Observe:
        """An `observe` for one forward whose loss will be scaled by `weight`, which is taken out again.

        With several ranks each sees its slice of the sequences; `row` puts together what they saw.
        """
        self._ranks = ranks

        def observe(visit: Visit, before: Tensor, after: Tensor) -> None:
            self._states.append((self._sampled(before), self._sampled(after)))
            if after.requires_grad:
                after.register_hook(lambda gradient: self._keep(visit.index, gradient, weight))

        return observe

    def _sampled(self, stream: Tensor) -> Tensor:
        tokens, ranks = stream.detach().flatten(0, 1), self._ranks
        stride = math.ceil(len(tokens) * ranks.size / self.sample)
        # The tokens that one process would take, as far as they are here.
        return tokens[-ranks.rank * len(tokens) % stride :: stride].float()

    def _keep(self, index: int, gradient: Tensor, weight: float) -> None:
        self._stream_norms[index] = torch.linalg.vector_norm(gradient.detach(), dtype=torch.float32) / weight

    def measure_gradients(
        self, model: Transformer, norm: Callable[[Sequence[Tensor]], Tensor] = total_norm
    ) -> None:
        """Read every stored layer's parameter gradient norm; call before gradients are clipped or cleared."""
        gradients: dict[int, list[Tensor]] = defaultdict(list)
        for name, parameter in model.layers.named_parameters():
            if parameter.grad is not None:
                gradients[int(name.partition(".")[0])].append(parameter.grad)
        self._layer_norms = [norm(gradients[layer]) for layer in range(len(model.layers))]

    def row(self) -> dict[str, list[float | None]]:
        """Lists by quantity.

        Per visit: `variance` of the stream over its features (after the visit, mean over tokens);
        `write_ratio`, |after - before| / |before| (mean over tokens); `angle` between before and after in
        radians (mean over tokens); `stream_grad_norm`, of the micro-batch's loss with respect to the stream
        after the visit. Per stored layer: `layer_grad_norm`, of the step's loss, before clipping.
        """
        means = torch.cat([_measure(chunk) for chunk in _chunks(self._states)])
        values = self._over_ranks(means).T.tolist()
        norms = self._all_stream_norms()
        return {
            **dict(zip(PER_VISIT, [_rounded(row) for row in values], strict=False)),
            "stream_grad_norm": _rounded(norms.get(visit) for visit in range(len(self._states))),
            "layer_grad_norm": _rounded(float(norm) for norm in self._layer_norms),
        }

    def _over_ranks(self, means: Tensor) -> Tensor:
        """Means over the tokens of all ranks, of those over this rank's."""
        if self._ranks.size == 1:
            return means
        count = len(self._states[0][0])
        own = means.double() * count if count else means.new_zeros(means.shape, dtype=torch.float64)
        held = torch.cat([own, own.new_full((1, 3), count)])
        sums = self._ranks.sum(held)
        return sums[:-1] / sums[-1]

    def _all_stream_norms(self) -> dict[int, float]:
        """Norm of the gradient at every visit that has one: over the sequences of all ranks."""
        own = {visit: float(norm) for visit, norm in self._stream_norms.items()}
        if self._ranks.size == 1:
            return own
        visits = sorted(own)
        squares = torch.tensor([own[visit] ** 2 for visit in visits], dtype=torch.float64)
        return dict(zip(visits, self._ranks.sum(squares).sqrt().tolist(), strict=True))


def _chunks(states: list[tuple[Tensor, Tensor]]) -> Iterable[tuple[Tensor, Tensor]]:
    for start in range(0, len(states), CHUNK):
        before, after = zip(*states[start : start + CHUNK], strict=True)
        yield torch.stack(before), torch.stack(after)


def _measure(pair: tuple[Tensor, Tensor]) -> Tensor:
    """[V, N, D] before and after -> [V, 3] variance, write ratio, angle."""
    before, after = pair
    size = torch.linalg.vector_norm(before, dim=-1)
    ratio = torch.linalg.vector_norm(after - before, dim=-1) / size
    per_token = torch.stack([after.var(-1, correction=0), ratio, angle(before, after)], dim=-1)
    return per_token.mean(1)


def angle(a: Tensor, b: Tensor) -> Tensor:
    """Angle between vectors `[..., D]` in radians, accurate near 0 and pi (Kahan's 2 atan2 formula)."""
    u = a / torch.linalg.vector_norm(a, dim=-1, keepdim=True)
    v = b / torch.linalg.vector_norm(b, dim=-1, keepdim=True)
    return 2 * torch.atan2(torch.linalg.vector_norm(u - v, dim=-1), torch.linalg.vector_norm(u + v, dim=-1))


def _rounded(values: Iterable[float | None]) -> list[float | None]:
    """Six significant digits, to keep the log small; undefined and infinite values become null."""
    return [float(f"{value:.6g}") if value is not None and math.isfinite(value) else None for value in values]
