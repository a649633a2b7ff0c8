"""A layer of experts as a candidate: everyone's computation on the same rows, routing and weights.

Shapes: N tokens, k choices a token, E experts, D width, F hidden width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.bench.limit import Product
from depthkit.kernels.experts import backend

Forward = Callable[[], Tensor]


@dataclass(frozen=True)
class Problem:
    """Random rows, weights and routing; every expert is as likely as another."""

    experts: int
    tokens: int
    precision: str
    dim: int = 256
    hidden: int = 344
    top_k: int = 2

    @property
    def dtype(self) -> torch.dtype:
        """Of rows and weights."""
        return torch.bfloat16 if self.precision == "bf16" else torch.float32

    def draw(self) -> dict[str, Tensor]:
        """`h`, `gate`, `up`, `down` with gradients; `index`, `weights` and the `gradient` of the result."""
        torch.manual_seed(0)
        up = (self.experts, self.hidden, self.dim)
        shapes = {"h": (self.tokens, self.dim), "gate": up, "up": up, "down": (up[0], up[2], up[1])}
        drawn = {name: torch.randn(shape) for name, shape in shapes.items()}
        for name in ("gate", "up", "down"):
            drawn[name] /= drawn[name].shape[-1] ** 0.5
        drawn = {name: value.to(self.dtype).requires_grad_() for name, value in drawn.items()}
        scores, index = torch.rand(self.tokens, self.experts).topk(self.top_k)
        gradient = torch.randn(self.tokens, self.dim).to(self.dtype)
        return {**drawn, "index": index, "weights": scores.softmax(-1), "gradient": gradient}


class Layer:
    """Experts whose forward and backward are timed; `parameters` have gradients like `h`."""

    def __init__(self, drawn: dict[str, Tensor], forward: Forward, parameters: dict[str, Tensor]):
        self.drawn, self.forward, self.parameters = drawn, forward, parameters

    def step(self) -> Tensor:
        """Forward and backward; returns the result."""
        for tensor in (self.drawn["h"], *self.parameters.values()):
            tensor.grad = None
        y = self.forward()
        y.backward(self.drawn["gradient"])
        return y.detach()

    def gradients(self) -> dict[str, Tensor]:
        """Of rows and weights after a step, gate and up one above the other as `gate_up`."""
        found = {name: p.grad for name, p in {"h": self.drawn["h"], **self.parameters}.items()}
        if "gate" in found:
            found["gate_up"] = torch.cat([found.pop("gate"), found.pop("up")], 1)  # type: ignore[list-item]
        return found  # type: ignore[return-value]


def ours(drawn: dict[str, Tensor], name: str) -> Layer:
    """One of depthkit's backends."""
    compute = backend(name)
    parameters = {part: drawn[part] for part in ("gate", "up", "down")}
    routing = drawn["index"], drawn["weights"]
    return Layer(drawn, lambda: compute(drawn["h"], *routing, *parameters.values()), parameters)


def transformers(drawn: dict[str, Tensor], implementation: str | None) -> tuple[Layer, str]:
    """Mixtral's experts in transformers: the implementation asked for or its own choice, and its name.

    Raises:
        ImportError: transformers is not installed.
    """
    from transformers import MixtralConfig, MixtralForCausalLM

    experts, hidden, dim = drawn["up"].shape
    config = MixtralConfig(
        vocab_size=8,
        hidden_size=dim,
        intermediate_size=hidden,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        num_local_experts=experts,
        num_experts_per_tok=drawn["index"].shape[1],
    )
    model = MixtralForCausalLM(config)
    if implementation is not None:
        model.set_experts_implementation(implementation)
    module: Any = model.model.layers[0].mlp.experts.to(drawn["h"].dtype)
    parameters = {"gate_up": module.gate_up_proj, "down": module.down_proj}
    with torch.no_grad():
        parameters["gate_up"].copy_(torch.cat([drawn["gate"], drawn["up"]], 1))
        parameters["down"].copy_(drawn["down"])
    layer = Layer(drawn, lambda: module(drawn["h"], drawn["index"], drawn["weights"]), parameters)
    return layer, model.config._experts_implementation


class Balanced:
    """The limit: the matrix products alone, with the same number of rows for every expert."""

    def __init__(self, problem: Problem):
        rows = problem.tokens * problem.top_k // problem.experts
        shapes = [(2 * problem.hidden, problem.dim), (problem.dim, problem.hidden)]
        self.products = [
            Product(rows, *shape, problem.dtype) for _ in range(problem.experts) for shape in shapes
        ]

    def step(self) -> None:
        """Forward and backward of every expert."""
        for product in self.products:
            product()


def difference(found: Layer, expected: Layer) -> float:
    """The largest relative difference of result and gradients after a step of each."""
    y, reference = found.step(), expected.step()
    pairs = [(y, reference)]
    # A step clears the gradient of the rows, which all layers share.
    theirs = {name: value.clone() for name, value in expected.gradients().items()}
    found.step()
    pairs += [(found.gradients()[name], value) for name, value in theirs.items()]
    return max(float((a - b).float().norm() / b.float().norm()) for a, b in pairs)
