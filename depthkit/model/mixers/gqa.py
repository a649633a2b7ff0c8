"""Grouped-query attention.

Shapes: B batch, T time, D width, H heads, K key/value heads, C head_dim.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import AfterValidator, Field, model_validator
from torch import Tensor, nn

from depthkit.kernels import attention
from depthkit.model.cache import Slot
from depthkit.model.linear import linear, together
from depthkit.model.registries import MIXERS
from depthkit.model.roles import assign
from depthkit.model.rope import Rotary, rotary_tables, rotate
from depthkit.registry import Spec, unknown


class AttentionContext(NamedTuple):
    """What layers of one kind share in a forward, and the cache slot of a single visit."""

    rotary: Rotary
    pattern: attention.Prepared
    """The backend and what it made of causality, window and documents."""
    start: int = 0
    """Position of the first query."""
    cache: Slot | None = None


def _known_backend(name: str) -> str:
    if name not in attention.names():
        raise ValueError(unknown("attention backend", name, attention.names()))
    return name


BackendName = Annotated[
    str, AfterValidator(_known_backend), Field(json_schema_extra={"enum": attention.names()})
]


@MIXERS.register("gqa")
class GroupedQueryAttention(nn.Module):
    """Grouped-query attention with RoPE; MHA and MQA are its ends (num_kv_heads = num_heads, or 1)."""

    equation = "o(softmax(rope(q) rope(k)^T / head_dim^scale_power + mask) v)"
    source = "arXiv:2305.13245; RoPE arXiv:2104.09864; qk-norm arXiv:2010.04245"
    compiled = False
    """Whether a compiler fuses what the block does; set where it is compiled."""

    class Config(Spec):
        """Settings of `gqa`."""

        num_heads: int = Field(ge=1)
        """Query heads H."""
        num_kv_heads: int | None = Field(None, ge=1)
        """Key/value heads K, a divisor of num_heads; null means num_heads (MHA)."""
        head_dim: int | None = Field(None, ge=2)
        """Channels a head, even; null means dim / num_heads."""
        rope_base: float = Field(1e4, gt=0)
        """Base of the rotary frequencies."""
        qk_norm: bool | Literal["all"] = False
        """RMS-normalise queries and keys before RoPE, with a learned gain: true within each head, `all` over
        all heads together (OLMo-2, arXiv:2501.00656)."""
        qk_norm_eps: float = Field(1e-6, gt=0)
        """Epsilon of qk_norm."""
        bias: Literal["none", "qk", "qkv"] = "none"
        """Which projections have a bias; it starts at zero."""
        scale_power: float = 0.5
        """Scores are divided by this power of head_dim; 1 is muP's and CompleteP's."""
        window: int | None = Field(None, ge=1)
        """Sliding window: a token sees fewer than this many tokens back, itself included."""
        causal: bool = True
        """Whether a token sees only itself and what came before."""
        backend: BackendName = "auto"
        """Attention kernel: eager, sdpa, flex, flash; auto takes the best that is available where it runs."""

        @model_validator(mode="after")
        def _divides(self) -> GroupedQueryAttention.Config:
            if self.num_kv_heads and self.num_heads % self.num_kv_heads:
                divisors = [d for d in range(1, self.num_heads + 1) if self.num_heads % d == 0]
                raise ValueError(
                    f"num_heads ({self.num_heads}) must be a multiple of num_kv_heads ({self.num_kv_heads}); "
                    f"allowed num_kv_heads: {divisors}"
                )
            if self.head_dim and self.head_dim % 2:
                raise ValueError(f"head_dim ({self.head_dim}) must be even, for rotary position embedding")
            return self

        @property
        def biased(self) -> str:
            """The projections with a bias, a letter each."""
            return "" if self.bias == "none" else self.bias

        @property
        def kv_heads(self) -> int:
            """K."""
            return self.num_kv_heads or self.num_heads

        def width(self, dim: int) -> int:
            """C, the channels of one head.

            Raises:
                ValueError: head_dim is null and num_heads does not divide dim into even parts.
            """
            if self.head_dim:
                return self.head_dim
            if dim % self.num_heads or (dim // self.num_heads) % 2:
                raise ValueError(
                    f"dim ({dim}) must split into num_heads ({self.num_heads}) even parts, or set head_dim"
                )
            return dim // self.num_heads

        def qk_norm_widths(self, dim: int) -> tuple[int, int]:
            """Channels that qk_norm takes together, of queries and of keys."""
            heads = (self.num_heads, self.kv_heads) if self.qk_norm == "all" else (1, 1)
            return heads[0] * self.width(dim), heads[1] * self.width(dim)

        def check(self, dim: int) -> None:
            """Refuse a width this mixer cannot work at."""
            self.width(dim)

        def num_parameters(self, dim: int) -> int:
            """Parameters of one layer."""
            width = self.width(dim)
            biases = len(self.biased) and width * (self.num_heads + (len(self.biased) - 1) * self.kv_heads)
            gains = sum(self.qk_norm_widths(dim)) if self.qk_norm else 0
            return 2 * dim * width * (self.num_heads + self.kv_heads) + gains + biases

        active_parameters = num_parameters

        def flops(self, dim: int, context: int) -> int:
            """Forward FLOPs that the mask asks for in a window of `context` tokens; a multiply-add is 2.

            Causal attention over T tokens comes to 2(T+1) H C a token for scores and values together.
            """
            pairs = _visible_pairs(context, self.window or context, self.causal)
            return self._projections(dim, context) + 4 * pairs * self.num_heads * self.width(dim)

        def executed_flops(self, dim: int, context: int) -> int:
            """Forward FLOPs of dense kernels, which compute all T x T scores and mask afterwards."""
            return self._projections(dim, context) + 4 * context**2 * self.num_heads * self.width(dim)

        def _projections(self, dim: int, context: int) -> int:
            return 2 * context * 2 * dim * self.width(dim) * (self.num_heads + self.kv_heads)

    def __init__(self, config: Any, dim: int):
        super().__init__()
        self.config = config
        self.head_dim = config.width(dim)
        widths = {"q": config.num_heads, "k": config.kv_heads, "v": config.kv_heads}
        self.q, self.k, self.v = (
            linear(dim, heads * self.head_dim, bias=name in config.biased) for name, heads in widths.items()
        )
        self.o = linear(config.num_heads * self.head_dim, dim)
        roles = {"q": "q.weight", "k": "k.weight", "v": "v.weight", "o": "o.weight"}
        if config.qk_norm:
            widths_normed = config.qk_norm_widths(dim)
            self.q_norm, self.k_norm = (nn.RMSNorm(width, eps=config.qk_norm_eps) for width in widths_normed)
            roles["norm"] = "q_norm.weight,k_norm.weight"
        if config.biased:
            roles["bias"] = ",".join(f"{name}.bias" for name in config.biased)
        assign(self, **roles)

    def prepare(self, ids: Tensor, documents: Tensor | None, start: int = 0) -> AttentionContext:
        """Rotary tables and mask, made once a forward for the positions from `start` on.

        Args:
            ids: `[B, T]`, the positions to compute; earlier ones are in a cache.
            documents: `[B, start + T]` document ids, or None.
            start: how many positions stand before them.

        Raises:
            ValueError: the backend cannot be used here, or `documents` has another shape.
        """
        time = ids.shape[1]
        request = self._request(ids, documents, start)
        rotary = rotary_tables(time, self.head_dim, self.config.rope_base, ids.device, start)
        return AttentionContext(rotary, attention.prepare(self.config.backend, request), start)

    def _request(self, ids: Tensor, documents: Tensor | None, start: int = 0) -> attention.Request:
        batch, time = ids.shape
        return attention.Request(
            batch=batch,
            queries=time,
            keys=start + time,
            head_dim=self.head_dim,
            device=ids.device,
            dtype=_compute_dtype(self.v.weight),
            causal=self.config.causal,
            window=self.config.window,
            documents=documents,
            grad=torch.is_grad_enabled(),
            compiled=self.compiled,
        )

    def with_cache(self, ctx: AttentionContext, slot: Slot) -> AttentionContext:
        """`ctx` for one visit, whose keys and values are kept in `slot`.

        Raises:
            ValueError: attention is not causal, so that new tokens change the keys of earlier ones; or `ctx`
                was prepared for other positions than those that follow the slot's.
        """
        if not self.config.causal:
            raise ValueError("mixer.causal: false has no cache, because every token sees those after it")
        held = slot.before(ctx.rotary.cos.shape[0])
        if held != ctx.start:
            raise ValueError(
                f"start: {ctx.start}, but the cache holds {held} positions; take start=cache.length"
            )
        return ctx._replace(cache=slot)

    @torch.no_grad()
    def write_power(self) -> Tensor:
        """||W_V W_O||_F^2, fp32 scalar, with the value heads repeated for the query heads that share them.

        Repeating value heads and multiplying is summing the output matrices of the heads that share one; the
        norm then is tr((W_V^T W_V)(W_O W_O^T)), two Gram matrices instead of a dim x dim product.
        """
        groups = (self.config.kv_heads, -1, self.head_dim)
        with torch.autocast(self.o.weight.device.type, enabled=False):
            value = self.v.weight.float()
            output = self.o.weight.float().unflatten(1, groups).sum(2).flatten(1)
            return ((value @ value.T) * (output.T @ output)).sum()

    def forward(self, h: Tensor, ctx: AttentionContext, bank: Any = None) -> tuple[Tensor, dict[str, Tensor]]:
        """`[B, T, D] -> ([B, T, D], {})`."""
        q, k, v = together(h, self.q, self.k, self.v)
        q, k, v = *self._prepared(q, k, ctx), self._heads(v)
        if ctx.cache is not None:
            k, v = ctx.cache.append(k, v)
        y = attention.attend(q, k, v, ctx.pattern, self.scale)
        return self.o(y.transpose(1, 2).flatten(2)), {}

    def probabilities(
        self, h: Tensor, ctx: AttentionContext, documents: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """What `forward` weights the values with, on any backend and without a cache; for probes.

        Args:
            h: `[B, T, D]`, what the mixer reads.
            ctx: as given to `forward`.
            documents: `[B, T]`, as given to `prepare`.

        Returns:
            Probabilities `[B, H, T, T]`, fp32, and which keys (columns) a query sees, `[B, T, T]`.
        """
        assert ctx.cache is None, "probabilities are of whole windows"
        ids = h.new_zeros(h.shape[:2], dtype=torch.int64)
        # Everything in one document is what no documents means, and makes the mask explicit.
        mask = attention.attention_mask(self._request(ids, ids if documents is None else documents))
        assert mask is not None
        q, k = self._queries_and_keys(h, ctx)
        pattern = attention.Dense(mask, causal=False)
        return attention.attention_probabilities(q, k, pattern, self.scale), mask[:, 0]

    @property
    def scale(self) -> float:
        """What scores are multiplied by."""
        return self.head_dim**-self.config.scale_power

    def _queries_and_keys(self, h: Tensor, ctx: AttentionContext) -> tuple[Tensor, Tensor]:
        return self._prepared(self.q(h), self.k(h), ctx)

    def _prepared(self, q: Tensor, k: Tensor, ctx: AttentionContext) -> tuple[Tensor, Tensor]:
        if self.config.qk_norm == "all":
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = self._heads(q), self._heads(k)
        if self.config.qk_norm is True:
            q, k = self.q_norm(q), self.k_norm(k)
        return rotate(q, ctx.rotary), rotate(k, ctx.rotary)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


def _compute_dtype(weight: Tensor) -> torch.dtype:
    """What a projection by `weight` returns, autocast included."""
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


def _visible_pairs(time: int, window: int, causal: bool) -> int:
    window = min(window, time)
    below = window * (window + 1) // 2 + (time - window) * window  # pairs with key <= query
    return below if causal else 2 * below - time
