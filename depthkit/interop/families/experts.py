"""Mixtures of experts: Mixtral, Qwen3-MoE and OLMoE.

Shapes: E experts, F hidden width of an expert, D width, k experts a token.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from depthkit.interop.decoder import Decoder
from depthkit.interop.families import FAMILIES
from depthkit.interop.families.base import Family, lacking_heads
from depthkit.interop.links import Link, fused_experts, same

ONLY = {
    "expert": "swiglu",
    "score": "softmax",
    "scale": 1.0,
    "router": "shared",
    "bias_rate": 0.0,
    "shared_experts": 0,
}
"""What an expert layer of ours must be."""
FREE = {"balance", "z_loss", "scope", "backend", "renormalise"}
"""What may differ between layers: it acts in training only, or is compared otherwise."""


class Mixture(Family):
    """Expert layers whose weights are stored for all experts together."""

    ffn_kinds: ClassVar[tuple[str, ...]] = ("moe",)

    def lacking_ffns(self, decoder: Decoder) -> Iterator[str]:
        """Also routing that the family does not have."""
        yield from super().lacking_ffns(decoder)
        layers = decoder.ffns("moe")
        if not layers:
            yield "no experts"
            return
        for ffn in layers:
            yield from (
                f"ffn.{n} {getattr(ffn, n)!r}, not {v!r}" for n, v in ONLY.items() if getattr(ffn, n) != v
            )
        if any(ffn.model_dump(exclude=FREE) != layers[0].model_dump(exclude=FREE) for ffn in layers):
            yield "experts that differ between layers"
        if len({ffn.renormalises for ffn in layers}) > 1:
            yield "ffn.renormalise that differs between layers"

    def settings(self, decoder: Decoder) -> dict[str, Any]:
        """With the experts; the balance loss is weighted as in theirs, which is k times larger."""
        ffn = decoder.ffns("moe")[0]
        return super().settings(decoder) | {
            "num_experts_per_tok": ffn.top_k,
            "router_aux_loss_coef": ffn.balance / ffn.top_k,
        }

    def ffn(self, config: Any, layer: int) -> dict[str, Any]:
        """The experts of one layer."""
        return {
            "kind": "moe",
            "top_k": config.num_experts_per_tok,
            "balance": config.router_aux_loss_coef * config.num_experts_per_tok,
            "z_loss": 0.0,
        }

    def ffn_links(self, ffn: Any) -> Iterator[Link]:
        """Router and experts, or a dense feed-forward."""
        if ffn.kind != "moe":
            yield from super().ffn_links(ffn)
            return
        yield same("mlp.gate.weight", "ffn.branch.router.weight")
        yield fused_experts("mlp.experts.gate_up_proj", "ffn.branch.gate", "ffn.branch.up")
        yield same("mlp.experts.down_proj", "ffn.branch.down")


@FAMILIES.register("mixtral")
class Mixtral(Mixture):
    """Mistral with experts in every layer, their weights renormalised."""

    source = "arXiv:2401.04088"
    windows = "alike"
    fixed = Mixture.fixed | {"router_jitter_noise": 0.0}

    def lacking_ffns(self, decoder: Decoder) -> Iterator[str]:
        """Weights that do not sum to 1."""
        yield from super().lacking_ffns(decoder)
        if not all(ffn.renormalises for ffn in decoder.ffns("moe")):
            yield "ffn.renormalise false"

    def settings(self, decoder: Decoder) -> dict[str, Any]:
        """With window and experts."""
        experts = {"num_local_experts": decoder.ffns("moe")[0].num_experts}
        return super().settings(decoder) | experts | {"sliding_window": decoder.windows[0]}

    def ffn(self, config: Any, layer: int) -> dict[str, Any]:
        """The experts of one layer."""
        sizes = {"num_experts": config.num_local_experts, "hidden_dim": config.intermediate_size}
        return super().ffn(config, layer) | sizes | {"renormalise": True}


@FAMILIES.register("qwen3_moe")
class Qwen3Moe(Mixture):
    """Qwen3 with experts in some or all layers."""

    source = "arXiv:2505.09388"
    qk_norm = True
    windows = "alike"
    ffn_kinds = ("swiglu", "moe")
    fixed = Mixture.fixed | {"attention_bias": False}

    def settings(self, decoder: Decoder) -> dict[str, Any]:
        """With experts, and which layers have none."""
        ffn = decoder.ffns("moe")[0]
        return super().settings(decoder) | {
            "use_sliding_window": decoder.windows[0] is not None,
            "sliding_window": decoder.windows[0],
            "num_experts": ffn.num_experts,
            "moe_intermediate_size": ffn.hidden(decoder.dim),
            "norm_topk_prob": ffn.renormalises,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [i for i, layer in enumerate(decoder.layers) if layer.ffn.kind != "moe"],
        }

    def ffn(self, config: Any, layer: int) -> dict[str, Any]:
        """The experts of one layer, or its dense feed-forward."""
        sparse = config.num_experts > 0 and (layer + 1) % config.decoder_sparse_step == 0
        if layer in config.mlp_only_layers or not sparse:
            return Family.ffn(self, config, layer)
        sizes = {"num_experts": config.num_experts, "hidden_dim": config.moe_intermediate_size}
        return super().ffn(config, layer) | sizes | {"renormalise": config.norm_topk_prob}


@FAMILIES.register("olmoe")
class Olmoe(Mixture):
    """OLMoE: experts in every layer; queries and keys normalised over all heads."""

    source = "arXiv:2409.02060"
    qk_norm = "all"
    fixed = Mixture.fixed | {"attention_bias": False, "clip_qkv": None}

    def lacks(self, decoder: Decoder) -> Iterator[str]:
        """Also heads that do not add up to the width."""
        yield from super().lacks(decoder)
        yield from lacking_heads(decoder)

    def settings(self, decoder: Decoder) -> dict[str, Any]:
        """With the experts."""
        ffn = decoder.ffns("moe")[0]
        return super().settings(decoder) | {
            "num_experts": ffn.num_experts,
            "norm_topk_prob": ffn.renormalises,
        }

    def ffn(self, config: Any, layer: int) -> dict[str, Any]:
        """The experts of one layer."""
        sizes = {"num_experts": config.num_experts, "hidden_dim": config.intermediate_size}
        return super().ffn(config, layer) | sizes | {"renormalise": config.norm_topk_prob}
