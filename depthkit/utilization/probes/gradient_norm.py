"""How strongly the loss pulls at each layer's parameters and at the states between visits.

Shapes: B sequences, T positions, D width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from depthkit.utilization.accumulators import Totals
from depthkit.utilization.linearised import reason_against
from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.probes import PROBES
from depthkit.utilization.replay import Trace
from depthkit.utilization.result import Result, Scalar, Series
from depthkit.utilization.sequences import IGNORED
from depthkit.utilization.statistics import Sample, number
from depthkit.utilization.subject import Subject
from depthkit.utilization.table import both_means, series

EVALUATIONS = 3
"""Layer evaluations a visit: its forward, and a backward of about two."""
LAYER = "of the visit's stored layer, through all visits of it"


@PROBES.register("gradient_norm")
class GradientNorm(Probe):
    """Norms of the gradient of the model's own loss with respect to layers and to states.

    |dL / d theta| of a stored layer, L the mean nats a scored token over all sequences, and its ratio to
    |theta|; every visit of a shared layer shows that layer's number. |d nats / d h| of the state after a
    visit, per token, where nats are summed over the token's sequence, so that it does not depend on how many
    tokens were read; null in a model that carries several residual streams.

    One forward and one backward of every micro-batch. Gradients are summed in fp32 beside the model, whose
    parameters and `.grad` stay as they were; it takes as much memory as the layers.
    """

    alike = frozenset({"_reasons"})

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        layers = context.subject.layers
        self._parameters = [[p for p in layer.parameters() if p.is_floating_point()] for layer in layers]
        self._gradients = Totals()
        self._places = {p: place for place, p in enumerate(self._flat())}
        self._states = self.table(self.depth + 1)
        self._reasons: dict[str, str] = {}
        if any(parameter.is_meta for parameter in self._flat()):
            self._reasons["gradient_norm"] = "not all weights are in memory: its layers are on disk"

    def _flat(self) -> list[nn.Parameter]:
        return list(dict.fromkeys(p for parameters in self._parameters for p in parameters))

    def see(self, trace: Trace) -> None:
        """Add the gradients of one micro-batch."""
        if "gradient_norm" not in self._reasons:
            reason = reason_against(lambda: self._differentiate(trace))
            if reason:
                self._reasons["gradient_norm"] = reason

    def _differentiate(self, trace: Trace) -> None:
        parameters = self._flat()
        with torch.enable_grad(), _trainable(parameters):
            states, final = self._forward(trace)
            cotangent = loss_gradient(self.context.subject, final, trace.batch.targets)
            wanted = [*parameters, *states]
            found = torch.autograd.grad(final, wanted, cotangent, materialize_grads=True)
        self.context.count(len(trace.batch), EVALUATIONS * self.depth)
        for place, gradient in enumerate(found[: len(parameters)]):
            self._gradients.add(place, gradient.float())
        for row, gradient in enumerate(found[len(parameters) :]):
            self._states.add(row, trace.rows, gradient.float().norm(dim=-1), trace.batch.mask)

    def _forward(self, trace: Trace) -> tuple[list[Tensor], Tensor]:
        """The states before the first and after every visit, and the last stream, graph attached."""
        path, carried, states = trace.path, trace.entered[0], []
        single = _single_stream(trace)
        if single is None:
            states.append(trace.before[0].detach().clone().requires_grad_())
            carried = path.with_stream(carried, states[0])
        else:
            self._reasons["state_gradient"] = single
        for visit in range(self.depth):
            carried, _ = path.run(visit, path.enter(visit, carried) if visit else carried)
            if single is None:
                # The tensor that is kept must be the one that is carried on, or no gradient would reach it.
                states.append(path.stream(carried))
                carried = path.with_stream(carried, states[-1])
            carried = path.leave(visit, carried)
        return states, path.stream(carried)

    def compute(self) -> Result:
        """Series by visit; None with the reason where there is no gradient."""
        result, seed = Result(skipped=dict(self._reasons)), self.context.seed
        self._layers(result)
        table = self.table(self.depth + 1) if "gradient_norm" in self._reasons else self._states
        words = "norm of the gradient of a sequence's summed nats in the state after the visit, per token"
        result.per_visit |= both_means("state_gradient", table, seed, "nats / unit", words, slice(1, None))
        sample = table.sample
        embed = series(Sample(sample.sums[:1], sample.counts[:1]), seed, "nats / unit", words)
        result.scalars["state_gradient_embed.mean"] = Scalar(
            embed.values[0], f"{words}: before the first visit"
        )
        return result

    def _layers(self, result: Result) -> None:
        failed = "gradient_norm" in self._reasons
        scored = self.context.sequences.num_scored
        sizes, ratios = [], []
        for parameters in self._parameters:
            measured = [] if failed else parameters
            size = _norm(self._gradients.values[self._places[p]] for p in measured) / scored
            weight = _norm(measured)
            sizes.append(None if failed or not parameters else number(size))
            ratios.append(None if failed or weight == 0 else number(size / weight))
        layers = [place.layer for place in self.context.places]
        result.per_visit["gradient_norm.layer"] = Series(
            [sizes[layer] for layer in layers],
            "nats / unit",
            f"|dL / d theta| {LAYER}, L in nats a scored token",
        )
        result.per_visit["gradient_norm_relative.layer"] = Series(
            [ratios[layer] for layer in layers], "nats / unit^2", f"|dL / d theta| / |theta| {LAYER}"
        )


def loss_gradient(subject: Subject, final: Tensor, targets: Tensor) -> Tensor:
    """d (summed nats) / d final, `[B, T, D]`, with the head run in chunks of positions."""
    flat, wanted = final.detach().flatten(0, 1), targets.flatten()
    found, size = torch.zeros_like(flat), subject.chunk(final.shape[-1])
    for start in range(0, len(flat), size):
        part = slice(start, start + size)
        piece = flat[part].clone().requires_grad_()
        nats = F.cross_entropy(
            subject.read_out(piece[None])[0], wanted[part], reduction="sum", ignore_index=IGNORED
        )
        found[part] = torch.autograd.grad(nats, piece)[0]
    return found.view_as(final)


def _single_stream(trace: Trace) -> str | None:
    """Why the residual stream is not all that is carried, or None."""
    try:
        trace.path.with_stream(trace.entered[0], trace.before[0])
    except ValueError as error:
        return str(error)
    return None


@contextlib.contextmanager
def _trainable(parameters: list[nn.Parameter]) -> Iterator[None]:
    """All of these take part in gradients inside; as before afterwards."""
    flags = [parameter.requires_grad for parameter in parameters]
    try:
        for parameter in parameters:
            parameter.requires_grad_(True)
        yield
    finally:
        for parameter, flag in zip(parameters, flags, strict=True):
            parameter.requires_grad_(flag)


def _norm(tensors: Iterable[Tensor]) -> float:
    return float(sum(float(t.detach().double().square().sum()) for t in tensors)) ** 0.5
