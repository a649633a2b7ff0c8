"""One visit as a differentiable map of its residual stream, and products with its Jacobian.

Shapes: B sequences, T positions, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from depthkit.utilization.replay import Trace

UNSUPPORTED = (
    "is not implemented",
    "not yet implemented",
    "differentiate twice",
    "does not require grad",
    "does not support",
    "not have been used in the graph",
)
"""What torch says of an operation that has no derivative, or no second one."""


class NotDifferentiable(ValueError):
    """A visit is no map from one residual stream to the next that torch can differentiate."""


class Linearised:
    """A visit around the state it read: h_out = f(h_in) of a whole micro-batch, J its Jacobian.

    Products with J need the derivative of J^T w with respect to w, which fused attention does not have: with
    `twice` torch's attention is computed from its parts. Routing of experts is locally constant, so J is the
    Jacobian with every token's experts as they were chosen.

    Raises:
        NotDifferentiable: the model carries more than one residual stream.
        RuntimeError: torch's own, where an operation has no derivative.
    """

    def __init__(self, trace: Trace, visit: int, twice: bool = False):
        with torch.enable_grad():
            self._x = trace.before[visit].detach().clone().requires_grad_()
            entered = self._entered(trace, visit)
            self._out = self._run(trace, visit, entered, twice)
            if twice:
                self._w = torch.zeros_like(self._out, requires_grad=True)
                self._pulled = self._gradient(self._out, self._x, self._w, create_graph=True)

    def _entered(self, trace: Trace, visit: int) -> Any:
        try:
            return trace.path.with_stream(trace.entered[visit], self._x)
        except ValueError as error:
            raise NotDifferentiable(str(error)) from None

    @staticmethod
    def _run(trace: Trace, visit: int, entered: Any, twice: bool) -> Tensor:
        path = trace.path
        if not twice:
            return path.stream(path.run(visit, entered)[0])
        with sdpa_kernel(SDPBackend.MATH):
            return path.stream(path.run(visit, entered)[0])

    @staticmethod
    def _gradient(out: Tensor, x: Tensor, weights: Tensor, create_graph: bool = False) -> Tensor:
        return torch.autograd.grad(out, x, weights, retain_graph=True, create_graph=create_graph)[0]

    def pull(self, v: Tensor) -> Tensor:
        """J^T v, `[B, T, D] -> [B, T, D]`."""
        return self._gradient(self._out, self._x, v)

    def push(self, u: Tensor) -> Tensor:
        """J u, `[B, T, D] -> [B, T, D]`; only with `twice`."""
        return self._gradient(self._pulled, self._w, u)


def reason_against(measure: Callable[[], None]) -> str | None:
    """Measure; why that is impossible with this model, or None.

    Only `NotDifferentiable` and a missing derivative are reasons; any other error is an error.
    """
    try:
        measure()
    except NotDifferentiable as error:
        return str(error)
    except RuntimeError as error:
        message = str(error).split("\n")[0]
        if not isinstance(error, NotImplementedError) and not any(words in message for words in UNSUPPORTED):
            raise
        return f"no derivative: {message}"
    return None
