"""What a family is, and what most of them share.

A family says three things: what of a depthkit model it has (`lacks`), its config in our terms and ours in its
(`model`, `settings`), and which tensor is which (`links`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from depthkit.interop.decoder import Decoder, placement_name
from depthkit.interop.links import Link, same
from depthkit.model import BlockConfig
from depthkit.model.placement import PLACEMENTS
from depthkit.registry import Spec


class Family:
    """Pre-norm Llama: RMSNorm, rotary attention, SwiGLU, no biases. Subclasses say where they differ."""

    source: ClassVar[str] = ""
    placement: ClassVar[str] = "pre"
    norms: ClassVar[dict[str, str]] = {
        "mixer.before": "input_layernorm",
        "ffn.before": "post_attention_layernorm",
    }
    """Our norm sites -> theirs."""
    norm_kind: ClassVar[str] = "rms"
    ffn_kinds: ClassVar[tuple[str, ...]] = ("swiglu",)
    qk_norm: ClassVar[bool | str] = False
    bias: ClassVar[str] = "none"
    windows: ClassVar[Literal["none", "alike", "by_layer"]] = "none"
    fixed: ClassVar[dict[str, Any]] = {"hidden_act": "silu"}
    """Settings of theirs that depthkit can express with this value only."""
    dropouts: ClassVar[tuple[str, ...]] = ("attention_dropout",)
    """Settings of theirs that act in training only, and that depthkit leaves out."""

    class Config(Spec):
        """A family has no settings of its own: they come from the model."""

    # From depthkit.

    def expresses(self, decoder: Decoder) -> str | None:
        """Why a model would not be exactly one of this family, or None."""
        return next(self.lacks(decoder), None)

    def lacks(self, decoder: Decoder) -> Iterator[str]:
        """What the family does not have, in words."""
        mixer = decoder.mixer
        if decoder.placement != PLACEMENTS[self.placement]:
            yield f"placement {placement_name(decoder.placement)}, not {self.placement}"
        if decoder.norm.kind != self.norm_kind:
            yield f"norm {decoder.norm.kind!r}, not {self.norm_kind!r}"
        if mixer.bias != self.bias:
            yield f"bias {mixer.bias!r}, not {self.bias!r}"
        if mixer.qk_norm != self.qk_norm:
            yield f"qk_norm {_plain(mixer.qk_norm)}, not {_plain(self.qk_norm)}"
        elif mixer.qk_norm and mixer.qk_norm_eps != decoder.norm.eps:
            yield f"qk_norm_eps {mixer.qk_norm_eps}, other than the norms' {decoder.norm.eps}"
        yield from self._lacking_windows(decoder)
        yield from self.lacking_ffns(decoder)

    def _lacking_windows(self, decoder: Decoder) -> Iterator[str]:
        if self.windows == "none" and any(decoder.windows):
            yield "sliding windows"
        kinds = set(decoder.windows) - ({None} if self.windows == "by_layer" else set())
        if len(kinds) > 1:
            yield "sliding windows that differ between layers"

    def lacking_ffns(self, decoder: Decoder) -> Iterator[str]:
        """What the family's feed-forwards do not have."""
        found = {layer.ffn.kind for layer in decoder.layers}
        for kind in sorted(found - set(self.ffn_kinds)):
            yield f"ffn {kind!r}, not {' or '.join(self.ffn_kinds)}"
        for kind in self.ffn_kinds:
            if len({ffn.hidden(decoder.dim) for ffn in decoder.ffns(kind)}) > 1:
                yield f"{kind} of different widths"

    def settings(self, decoder: Decoder) -> dict[str, Any]:
        """The Hugging Face config of a model that `expresses` has nothing against."""
        mixer = decoder.mixer
        dense = decoder.ffns(self.ffn_kinds[0])
        return {
            "vocab_size": decoder.vocab_size,
            "hidden_size": decoder.dim,
            "intermediate_size": dense[0].hidden(decoder.dim) if dense else 4 * decoder.dim,
            "num_hidden_layers": len(decoder.layers),
            "num_attention_heads": mixer.num_heads,
            "num_key_value_heads": mixer.kv_heads,
            "head_dim": decoder.head_dim,
            "rope_parameters": {"rope_type": "default", "rope_theta": mixer.rope_base},
            "rms_norm_eps": decoder.norm.eps,
            "tie_word_embeddings": decoder.tied,
        } | self.fixed

    # To depthkit.

    def refuses(self, config: Any) -> Iterator[str]:
        """Features of a Hugging Face config that depthkit cannot express, each with its value."""
        for name, value in self.fixed.items():
            if getattr(config, name, value) != value:
                yield f"{name} {getattr(config, name)!r} (only {value!r})"
        rope = config.rope_parameters or {}
        if rope.get("rope_type", "default") != "default":
            yield f"rope_parameters.rope_type {rope['rope_type']!r} (only 'default')"
        if rope.get("partial_rotary_factor", 1.0) != 1.0:
            yield f"rope_parameters.partial_rotary_factor {rope['partial_rotary_factor']} (only 1.0)"
        known = {"full_attention", "sliding_attention"}
        for kind in sorted(set(getattr(config, "layer_types", None) or known) - known):
            yield f"layer_types {kind!r} (only {', '.join(sorted(known))})"

    def model(self, config: Any) -> dict[str, Any]:
        """The plain mapping under `model:` for a Hugging Face config that `refuses` has nothing against."""
        layers = [
            {"mixer": self.mixer(config, layer), "ffn": self.ffn(config, layer)}
            for layer in range(config.num_hidden_layers)
        ]
        return {
            "dim": config.hidden_size,
            "vocab_size": config.vocab_size,
            "norm": {"kind": self.norm_kind, "eps": self.eps(config)},
            "placement": self.placement,
            "final_norm": True,
            "head": {"kind": "lm", "tied": config.tie_word_embeddings},
            **laid_out(layers),
        }

    def eps(self, config: Any) -> float:
        """Epsilon of the norms."""
        return config.rms_norm_eps

    def mixer(self, config: Any, layer: int) -> dict[str, Any]:
        """The attention of one layer."""
        qk_norm = {"qk_norm": self.qk_norm, "qk_norm_eps": self.eps(config)} if self.qk_norm else {}
        return {
            "kind": "gqa",
            "num_heads": config.num_attention_heads,
            "num_kv_heads": getattr(config, "num_key_value_heads", None),
            "head_dim": getattr(config, "head_dim", None),
            "rope_base": float((config.rope_parameters or {}).get("rope_theta", 1e4)),
            "window": self._window(config, layer),
            "bias": self.bias,
            **qk_norm,
        }

    def _window(self, config: Any, layer: int) -> int | None:
        kinds = getattr(config, "layer_types", None) if self.windows == "by_layer" else None
        slides = self.windows != "none" and (kinds is None or kinds[layer] == "sliding_attention")
        return getattr(config, "sliding_window", None) if slides else None

    def ffn(self, config: Any, layer: int) -> dict[str, Any]:
        """The feed-forward of one layer."""
        return {"kind": "swiglu", "hidden_dim": config.intermediate_size}

    # Both ways.

    def links(self, decoder: Decoder) -> Iterator[Link]:
        """Every tensor of the model."""
        yield same("model.embed_tokens.weight", "embed.weight")
        yield same("model.norm.weight", "final_norm.weight")
        if not decoder.tied:
            yield same("lm_head.weight", "head.weight")
        for index, layer in enumerate(decoder.layers):
            for link in self.layer_links(decoder, layer):
                ours = tuple(f"layers.{index}.{name}" for name in link.ours)
                yield link._replace(theirs=f"model.layers.{index}.{link.theirs}", ours=ours)

    def layer_links(self, decoder: Decoder, layer: BlockConfig) -> Iterator[Link]:
        """Every tensor of one layer, named within it."""
        for ours, theirs in self.norms.items():
            yield same(f"{theirs}.weight", f"{ours}.weight")
        for name in "qkvo":
            yield same(f"self_attn.{name}_proj.weight", f"mixer.branch.{name}.weight")
        for name in ("q_norm", "k_norm") if self.qk_norm else ():
            yield same(f"self_attn.{name}.weight", f"mixer.branch.{name}.weight")
        for name in "" if self.bias == "none" else self.bias:
            yield same(f"self_attn.{name}_proj.bias", f"mixer.branch.{name}.bias")
        yield from self.ffn_links(layer.ffn)

    def ffn_links(self, ffn: Any) -> Iterator[Link]:
        """Every tensor of one feed-forward."""
        for name in ("gate", "up", "down"):
            yield same(f"mlp.{name}_proj.weight", f"ffn.branch.{name}.weight")


def lacking_heads(decoder: Decoder) -> Iterator[str]:
    """For families whose heads add up to the width."""
    if decoder.head_dim * decoder.mixer.num_heads != decoder.dim:
        yield f"{decoder.mixer.num_heads} heads of {decoder.head_dim}, not {decoder.dim} channels in all"


def _plain(value: bool | str) -> str:
    """A setting as it is written in YAML."""
    return str(value).lower()


def laid_out(layers: list[dict[str, Any]]) -> dict[str, Any]:
    """`blocks` and `segments` of a stack of layers: equal ones are one kind of block."""
    kinds: list[dict[str, Any]] = []
    for layer in layers:
        if layer not in kinds:
            kinds.append(layer)
    names = [block_name(kind, kinds) for kind in kinds]
    pattern = [names[kinds.index(layer)] for layer in layers]
    return {
        "blocks": dict(zip(names, kinds, strict=True)),
        "segments": [{"name": "layers", **repeated(pattern)}],
    }


def block_name(block: dict[str, Any], kinds: list[dict[str, Any]]) -> str:
    """`dense` or `moe`, with `_local` where only some layers have a sliding window."""
    windows = {kind["mixer"]["window"] for kind in kinds}
    local = len(windows) > 1 and block["mixer"]["window"] is not None
    return ("moe" if block["ffn"]["kind"] == "moe" else "dense") + ("_local" if local else "")


def repeated(pattern: list[str]) -> dict[str, Any]:
    """`pattern` and `repeat` for a list of blocks; layers of one kind are written once."""
    return (
        {"pattern": pattern[:1], "repeat": len(pattern)}
        if len(set(pattern)) == 1
        else {"pattern": pattern, "repeat": 1}
    )
