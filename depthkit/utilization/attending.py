"""Who attends to whom in one visit.

depthkit's own mixers say it, on any backend. Of any other model it is what a module inside the layer returns
as attention weights, once these have been checked to be causal probabilities; fused kernels return none.

Shapes: B sequences, T positions, H heads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from depthkit.model.block import Block
from depthkit.utilization.replay import Trace
from depthkit.utilization.watching import tensors, watching

TOLERANCE = 1e-3
"""How far from 1 the probabilities of a query may sum in fp32."""
SHORT_TOLERANCE = 2e-2
"""The same where the model computes in 16 bits."""


FUSED = (
    "no module of the layer returns attention weights, as fused kernels do not: "
    "load the model with attn_implementation=eager"
)


class Attending(NamedTuple):
    """Attention probabilities `[B, H, T, T]`, fp32, and which keys (columns) a query sees, `[B, T, T]`."""

    probabilities: Tensor
    visible: Tensor


def attending(trace: Trace, visit: int) -> Attending | str:
    """The attention of a visit, which is run once more for it, or the reason why there is none to see."""
    layer = trace.path.module(visit)
    return _own(trace, visit, layer) if isinstance(layer, Block) else _returned(trace, visit, layer)


def _own(trace: Trace, visit: int, layer: Block) -> Attending | str:
    mixer: Any = layer.mixer.branch
    if not hasattr(mixer, "probabilities"):
        return f"mixer {type(mixer).__name__} has no attention probabilities"
    calls: list[tuple[Any, ...]] = []
    with watching(layer, [mixer], lambda args, kwargs, output: calls.append(args)):
        trace.path.run(visit, trace.entered[visit], without=("ffn",))
    h, context, *_ = calls[0]
    return Attending(*mixer.probabilities(h, context, trace.batch.documents))


def _returned(trace: Trace, visit: int, layer: nn.Module) -> Attending | str:
    weights = _Weights(trace.batch.mask)
    with watching(layer, layer.modules(), weights.see):
        trace.path.run(visit, trace.entered[visit])
    return weights.found()


@dataclass
class _Weights:
    """Looks for attention weights in what modules return, and for the mask in what they are given.

    `real [B, T]` says which queries are no padding.
    """

    real: Tensor
    candidates: list[Tensor] = field(default_factory=list)
    mask: Tensor | None = None

    def see(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """One call of one module."""
        square = filter(self._square, tensors(output))
        self.candidates += [t for t in square if t.is_floating_point() and len(t) == len(self.real)]
        for tensor in filter(self._square, tensors((args, kwargs))):
            self.mask = _mask(tensor) if self.mask is None else self.mask

    def _square(self, tensor: Tensor) -> bool:
        (batch, time), shape = self.real.shape, tensor.shape
        return tensor.ndim == 4 and shape[0] in (1, batch) and tuple(shape[2:]) == (time, time)

    def found(self) -> Attending | str:
        """The first that are causal probabilities, or what is wrong with the first of all."""
        visible = torch.ones(self.real.shape[1], self.real.shape[1], dtype=torch.bool).tril()
        visible = visible.to(self.real.device).expand(len(self.real), -1, -1)
        visible = visible if self.mask is None else visible & self.mask.any(1)
        problems = []
        for candidate in self.candidates:
            weights = candidate.float()
            problem = self._problem(weights, visible, candidate.dtype)
            if problem is None:
                return Attending(weights, visible)
            problems.append(problem)
        return problems[0] if problems else FUSED

    def _problem(self, weights: Tensor, visible: Tensor, dtype: torch.dtype) -> str | None:
        """Why these are no causal probabilities, of real queries; None when they are."""
        wanted = self.real[:, None, :, None]
        kept = weights.where(wanted, 0.0)
        sums = kept.sum(-1).where(wanted[..., 0], 1.0)
        limit = TOLERANCE if dtype.itemsize >= 4 else SHORT_TOLERANCE
        if not float((sums - 1).abs().max()) <= limit:
            low, high = float(sums.min()), float(sums.max())
            return f"attention weights of a query sum to {low:.3g} to {high:.3g}, not 1"
        if float(kept.triu(1).abs().max()) > 0:
            return "attention weights look at later tokens"
        if float(kept.min()) < 0 or float(kept.masked_fill(visible[:, None], 0.0).max()) > 0:
            return "attention weights are negative, or not 0 where the layer's mask hides a key"
        return None


def _mask(tensor: Tensor) -> Tensor | None:
    """Where a mask hides nothing: of booleans, or of numbers of which some are as low as can be."""
    if tensor.dtype == torch.bool:
        return tensor
    if not tensor.is_floating_point():
        return None
    shown = tensor > torch.finfo(tensor.dtype).min / 2
    return None if bool(shown.all()) else shown
