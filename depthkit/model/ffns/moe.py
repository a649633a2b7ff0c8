"""Mixture of experts.

Shapes: B batch, T time, D width, E experts, k experts a token, F hidden width of an expert, N = B T tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from depthkit.kernels.experts import BACKENDS, backend
from depthkit.kernels.experts.parallel import parallel, slice_of
from depthkit.model.ffns.balance import Counted, Reduce, auxiliary, count_tokens
from depthkit.model.ffns.router import Routed, Router, RouterBank, Visiting, route
from depthkit.model.plan import Plan
from depthkit.model.registries import FFNS
from depthkit.model.roles import assign
from depthkit.registry import Spec, unknown

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@FFNS.register("moe")
class MixtureOfExperts(nn.Module):
    """Every token goes to k of E experts, none is dropped; shared experts see every token.

    `forward` returns, beside its output, `loss/balance` and `loss/router_z` (weighted, to be added to the
    objective), `load [E]` (counted tokens an expert got), `balance` (the unweighted loss), `entropy` (of the
    router, nats) and `experts [B, T, k]` (who was chosen).
    """

    equation = "sum_{e in top-k(s + b)} w_e expert_e(h) + shared(h), s = softmax or sigmoid(W h)"
    source = (
        "arXiv:1701.06538; dropless arXiv:2211.15841; sigmoid and loss-free bias arXiv:2412.19437, 2408.15664"
    )
    reduce_over_ranks: Reduce | None = None
    """Sums a tensor over the ranks that share a batch; None where one has it all."""

    class Config(Spec):
        """Settings of `moe`."""

        num_experts: int = Field(8, ge=1)
        """Experts E."""
        top_k: int = Field(2, ge=1)
        """Experts a token goes to, k."""
        hidden_dim: int | None = Field(None, ge=1)
        """Hidden width F of an expert; null is a dense layer's width / k, rounded up to a multiple of 8."""
        expert: Literal["swiglu", "gelu"] = "swiglu"
        """What an expert is."""
        score: Literal["softmax", "sigmoid"] = "softmax"
        """How router logits become scores."""
        renormalise: bool | None = None
        """Whether the weights of a token's k experts are made to sum to 1; null is yes for k above 1, since a
        single weight would always be 1 and the router learn nothing from the loss."""
        scale: float = Field(1.0, gt=0)
        """Multiplies the weights."""
        router: Literal["shared", "per_loop", "shared_bias"] = "shared"
        """One router for all loops, one for every loop, or one with a learned bias for every loop."""
        balance: float = Field(0.01, ge=0)
        """Weight of the load-balancing loss, 1 when uniform; mean over layers and loops."""
        scope: Literal["sequence", "batch"] = "sequence"
        """Balance within every sequence, which does not depend on how a batch is split, or within the
        micro-batch of all ranks as published, which does."""
        z_loss: float = Field(0.001, ge=0)
        """Weight of the router's squared log-partition."""
        bias_rate: float = Field(0.0, ge=0)
        """Step of the loss-free balancing bias after every optimiser step; 0 is off, 0.001 is published."""
        shared_experts: int = Field(0, ge=0)
        """Experts every token goes to, as one feed-forward of so many times F."""
        backend: str = "grouped"
        """Expert kernels: grouped (torch), loop (reference), megablocks."""

        @model_validator(mode="after")
        def _possible(self) -> MixtureOfExperts.Config:
            if self.top_k > self.num_experts:
                raise ValueError(f"top_k ({self.top_k}) must not exceed num_experts ({self.num_experts})")
            if self.backend not in BACKENDS:
                raise ValueError(f"backend: {unknown('expert backend', self.backend, BACKENDS)}")
            return self

        @property
        def renormalises(self) -> bool:
            """Whether the weights sum to 1, with null resolved."""
            return self.top_k > 1 if self.renormalise is None else self.renormalise

        @property
        def matrices(self) -> int:
            """Matrices of an expert."""
            return 3 if self.expert == "swiglu" else 2

        def hidden(self, dim: int) -> int:
            """F at model width `dim`."""
            return self.hidden_dim or -(-8 * dim // self.matrices // self.top_k // 8) * 8

        def shared_config(self, dim: int) -> Any:
            """The feed-forward that the shared experts are, or None."""
            if not self.shared_experts:
                return None
            hidden = self.shared_experts * self.hidden(dim)
            return FFNS.get(self.expert).Config(hidden_dim=hidden)

        def check(self, dim: int) -> None:
            """Any width will do."""

        def _expert(self, dim: int) -> int:
            return self.matrices * dim * self.hidden(dim)

        def _shared(self, dim: int) -> int:
            return self.shared_experts * self._expert(dim)

        def num_parameters(self, dim: int) -> int:
            """Parameters of one layer, without those of single visits."""
            router = 0 if self.router == "per_loop" else self.num_experts * dim
            return self.num_experts * self._expert(dim) + self._shared(dim) + router

        def bank_parameters(self, visits: int, dim: int) -> int:
            """Parameters of single visits, for so many of them."""
            each = {"shared": 0, "per_loop": self.num_experts * dim, "shared_bias": self.num_experts}
            return visits * each[self.router]

        def active_parameters(self, dim: int) -> int:
            """Parameters of the layer that a token touches, without those of single visits."""
            router = 0 if self.router == "per_loop" else self.num_experts * dim
            return self.top_k * self._expert(dim) + self._shared(dim) + router

        def flops(self, dim: int, context: int) -> int:
            """Forward FLOPs of a window of `context` tokens; a multiply-add counts as 2."""
            router = self.num_experts * dim
            return 2 * context * (self.top_k * self._expert(dim) + self._shared(dim) + router)

        def executed_flops(self, dim: int, context: int) -> int:
            """The same: only chosen experts are computed."""
            return self.flops(dim, context)

    def __init__(self, config: Any, dim: int):
        super().__init__()
        self.config = config
        experts, hidden = config.num_experts, config.hidden(dim)
        gated = config.expert == "swiglu"
        self.router = None if config.router == "per_loop" else Router(experts, dim)
        self.gate = nn.Parameter(torch.empty(experts, hidden, dim)) if gated else None
        self.up = nn.Parameter(torch.empty(experts, hidden, dim))
        self.down = nn.Parameter(torch.empty(experts, dim, hidden))
        shared = config.shared_config(dim)
        self.shared = None if shared is None else shared.component(shared, dim)
        self.compute = backend(config.backend)
        roles = {"up": "up", "down": "down"} | ({"gate": "gate"} if gated else {})
        assign(self, **roles)

    @staticmethod
    def bank(config: Any, dim: int, plan: Plan) -> nn.Module | None:
        """What differs by visit: routers or their biases, and the bias of loss-free balancing."""
        if config.router == "shared" and not config.bias_rate:
            return None
        return RouterBank(config, dim, plan)

    def prepare(self, ids: Tensor, counted: Tensor | None) -> Counted:
        """Which tokens count for balance and load, `[B, T]`."""
        return count_tokens(ids, counted, self.reduce_over_ranks)

    def expert_parameters(self) -> dict[str, nn.Parameter]:
        """The stacked matrices by name, `[E, ...]`, of a rank's own experts once sharded."""
        return {name: p for name, p in self.named_parameters(recurse=False) if p.dim() == 3}

    def shard(self, group: ProcessGroup) -> None:
        """Keep this rank's experts of `group`, and let tokens travel to the others; see `shard_experts`."""
        assert self.up.shape[0] == self.config.num_experts, "sharded twice"
        own = slice_of(self.config.num_experts, group.rank(), group.size())
        for name, whole in self.expert_parameters().items():
            part = whole.detach()[own].clone()
            setattr(self, name, nn.Parameter(part, requires_grad=whole.requires_grad))
        self.compute = parallel(self.compute, group)

    def forward(
        self, h: Tensor, ctx: Counted, bank: Visiting | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """`[B, T, D] -> ([B, T, D], aux)`."""
        routed = self.routed(h, bank)
        flat = h.flatten(0, 1)
        chosen, weights = routed.experts.flatten(0, 1), routed.weights.flatten(0, 1)
        y = self.compute(flat, chosen, weights, self.gate, self.up, self.down).view_as(h)
        if self.shared is not None:
            y = y + self.shared(h, None)[0]
        return y, auxiliary(routed, ctx, self.config)

    def routed(self, h: Tensor, bank: Visiting | None = None) -> Routed:
        """Where the tokens of `h [B, T, D]` go."""
        visiting = bank or Visiting()
        weight = self.router.weight if self.router is not None else visiting.weight
        assert weight is not None
        return route(h, weight, visiting, self.config)


def shard_experts(model: nn.Module, group: ProcessGroup) -> None:
    """Spread the experts of every layer over `group`, once their initial values are drawn.

    Rank r keeps the slices `slice_of(E, r, P)` of gate, up and down, as parameters of the same names, roles
    and rules; routers and shared experts stay whole. All ranks then run the same layers in the same order. A
    rank's expert gradients are sums over the tokens of all ranks of `group`.

    Raises:
        ValueError: a layer whose experts cannot be divided; no layer is changed then.
    """
    layers = _layers(model)
    for path, layer in layers.items():
        try:
            slice_of(layer.config.num_experts, group.rank(), group.size())
        except ValueError as error:
            raise ValueError(f"{path} ({_named(layer.config)}): {error}") from error
    for layer in layers.values():
        layer.shard(group)


def expert_parameters(model: nn.Module) -> set[str]:
    """Names of the parameters of `model` that `shard_experts` slices, by their first dimension."""
    return {
        f"{path}.{name}".lstrip(".")
        for path, layer in _layers(model).items()
        for name in layer.expert_parameters()
    }


def _layers(model: nn.Module) -> dict[str, MixtureOfExperts]:
    return {path: module for path, module in model.named_modules() if isinstance(module, MixtureOfExperts)}


def _named(config: Any) -> str:
    return f"ffn: {{kind: {config.kind}, num_experts: {config.num_experts}, top_k: {config.top_k}}}"
