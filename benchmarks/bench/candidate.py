"""What is timed: a model with a whole training step, the same step for everyone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.bench.shapes import Shape

LR, BETAS, EPS, DECAY, CLIP = 1e-5, (0.9, 0.95), 1e-8, 0.1, 1.0
"""AdamW and clipping of every candidate; a learning rate at which weights hardly move."""


class Measured(NamedTuple):
    """A loss in nats and its gradients by depthkit's parameter names."""

    loss: float
    gradients: dict[str, Tensor]


class Pairing(NamedTuple):
    """A peer's parameter that holds some of depthkit's, stacked along their rows.

    Row `i` of theirs is row `rows[i]` of the stack, and likewise with columns; None means the same order.
    """

    theirs: str
    ours: tuple[str, ...]
    rows: Tensor | None = None
    columns: Tensor | None = None

    def join(self, state: dict[str, Tensor]) -> Tensor:
        """Their parameter from depthkit's."""
        stacked = torch.cat([state[name] for name in self.ours])
        stacked = stacked if self.rows is None else stacked[self.rows]
        return stacked if self.columns is None else stacked[:, self.columns]

    def split(self, theirs: Tensor, state: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """depthkit's parameters from theirs; `state` says how many rows each has."""
        stacked = theirs if self.columns is None else theirs[:, self.columns.argsort()]
        stacked = stacked if self.rows is None else stacked[self.rows.argsort()]
        yield from zip(self.ours, stacked.split([len(state[name]) for name in self.ours]), strict=True)


class Candidate:
    """One training step over and over, on one batch: zero gradients, forward, loss, backward, clip, AdamW.

    Args:
        shape: of the model and the batch.

    Raises:
        ImportError: the library it comes from is not installed.
    """

    model: nn.Module

    def __init__(self, shape: Shape):
        self.shape = shape
        self.batch = shape.data()

    @property
    def num_parameters(self) -> int:
        """Parameters of the model."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def step(self) -> Any:
        """Take one training step."""
        raise NotImplementedError

    def measure(self) -> Measured:
        """Loss and gradients of the batch; weights stay as they are."""
        raise NotImplementedError


class Peer(Candidate):
    """A model of another library, with depthkit's weights in it.

    Subclasses say how the model is built, what its loss is and where depthkit's weights go in it.
    """

    def __init__(self, shape: Shape, state: dict[str, Tensor], compiled: bool = False):
        super().__init__(shape)
        self.state = state
        self.model = self.build(shape).train()
        self.load()
        self.optimizer = self._optimizer()
        if compiled:
            self.compile()

    def build(self, shape: Shape) -> nn.Module:
        """The library's model of this shape, in fp32."""
        raise NotImplementedError

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy as the library computes it in training."""
        raise NotImplementedError

    def pairings(self) -> Iterator[Pairing]:
        """Where every parameter comes from."""
        raise NotImplementedError

    def compile(self) -> None:
        """Compile in the library's usual way: each layer on its own.

        Raises:
            ValueError: it is not measured compiled.
        """
        raise ValueError(f"{type(self).__name__} is not measured compiled")

    @torch.no_grad()
    def load(self) -> None:
        """Put depthkit's weights in."""
        parameters = dict(self.model.named_parameters())
        for pairing in self.pairings():
            parameters.pop(pairing.theirs).copy_(pairing.join(self.state))
        assert not parameters, f"parameters without a counterpart: {sorted(parameters)}"

    def forward(self) -> Tensor:
        """The loss of the batch, under autocast where the shape asks for bf16."""
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.shape.bf16):
            return self.loss(self.batch.ids, self.batch.targets)

    def step(self) -> float:
        """One step, as in most training scripts."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.forward()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        return float(loss.detach())

    def measure(self) -> Measured:
        """See `Candidate`."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.forward()
        loss.backward()
        parameters = dict(self.model.named_parameters())
        gradients: dict[str, Tensor] = {}
        for pairing in self.pairings():
            gradient = parameters[pairing.theirs].grad
            assert gradient is not None, f"no gradient of {pairing.theirs}"
            gradients.update((name, part.clone()) for name, part in pairing.split(gradient, self.state))
        self.optimizer.zero_grad(set_to_none=True)
        return Measured(float(loss.detach()), gradients)

    def _optimizer(self) -> torch.optim.Optimizer:
        parameters = dict(self.model.named_parameters())
        vectors = [p for p in parameters.values() if p.ndim < 2]
        matrices = [p for p in parameters.values() if p.ndim >= 2]
        groups = [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS, fused=True)


def layer(number: int, *names: str) -> tuple[str, ...]:
    """depthkit's names of parameters of one layer: `mixer.norm`, `mixer.q`, `ffn.gate` ..."""
    return tuple(f"layers.{number}.{_PLACES[name]}" for name in names)


_PLACES = {
    "mixer.norm": "mixer.before.weight",
    "ffn.norm": "ffn.before.weight",
    **{f"mixer.{name}": f"mixer.branch.{name}.weight" for name in ("q", "k", "v", "o")},
    **{f"ffn.{name}": f"ffn.branch.{name}.weight" for name in ("gate", "up", "down")},
}
