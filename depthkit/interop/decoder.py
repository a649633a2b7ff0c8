"""What all families have in common: a decoder of attention layers, one after the other, each visited once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from depthkit.model import BlockConfig, ModelConfig
from depthkit.model.placement import PLACEMENTS, Placement


@dataclass(frozen=True)
class Decoder:
    """A model as the families see it.

    Attributes:
        dim: width D.
        vocab_size: tokens V.
        norm: config of every norm, the last one included.
        placement: of the norms in every layer.
        tied: whether the head is the embedding.
        layers: the block of every layer.
    """

    dim: int
    vocab_size: int
    norm: Any
    placement: Placement
    tied: bool
    layers: tuple[BlockConfig, ...]

    @property
    def mixer(self) -> Any:
        """Config of the attention; layers differ in the window at most."""
        return self.layers[0].mixer

    @property
    def head_dim(self) -> int:
        """Channels of a head, C."""
        return self.mixer.width(self.dim)

    @property
    def windows(self) -> list[int | None]:
        """Sliding window of every layer."""
        return [layer.mixer.window for layer in self.layers]

    def ffns(self, kind: str) -> list[Any]:
        """Configs of the feed-forwards of one kind, in order."""
        return [layer.ffn for layer in self.layers if layer.ffn.kind == kind]


def decoder_of(config: ModelConfig) -> Decoder:
    """The decoder that a config describes.

    Raises:
        ValueError: something that no family has; the message names it.
    """
    for check in _CHECKS:
        for reason in check(config):
            raise ValueError(reason)
    assert config.vocab_size is not None
    return Decoder(
        dim=config.dim,
        vocab_size=config.vocab_size,
        norm=config.norm_of(config.segments[0]),
        placement=config.placement_of(config.segments[0]),
        tied=config.head.tied,
        layers=tuple(config.blocks[kind] for kind in config.plan().layer_blocks),
    )


def placement_name(placement: Placement) -> str:
    """A placement as it is written."""
    return next(
        (name for name, sites in PLACEMENTS.items() if sites == placement), str(list(map(int, placement)))
    )


def _regulators(config: ModelConfig) -> Iterator[str]:
    yield from (f"regulator {r.kind!r}" for r, _ in config.acting_regulators())


def _ends(config: ModelConfig) -> Iterator[str]:
    wanted = (("stream", "single"), ("embed", "token"), ("head", "lm"))
    yield from (
        f"{axis} {getattr(config, axis).kind!r}"
        for axis, kind in wanted
        if getattr(config, axis).kind != kind
    )
    if config.embed.kind == "token" and config.embed.scale != 1:
        yield f"embed.scale {config.embed.scale}"
    if config.outer_norm("embed_norm") is not None:
        yield "embed_norm"


def _segments(config: ModelConfig) -> Iterator[str]:
    for segment in config.segments:
        if segment.recurs:
            yield f"what happens around the loops of segment {segment.name!r}, such as inject or carry"
        if segment.longest_loops != segment.num_loops or (segment.num_loops > 1 and segment.shared):
            yield f"segment {segment.name!r} is looped"


def _norms(config: ModelConfig) -> Iterator[str]:
    norms = [config.norm_of(segment) for segment in config.segments]
    placements = [config.placement_of(segment) for segment in config.segments]
    final = config.outer_norm("final_norm")
    if any(norm != norms[0] for norm in norms):
        yield "norms that differ between segments"
    if any(placement != placements[0] for placement in placements):
        yield "placements that differ between segments"
    if final is None:
        yield "no final_norm"
    elif final != norms[0].outside():
        yield f"final_norm {_norm(final)}, other than the blocks' {_norm(norms[0])}"


def _norm(config: Any) -> str:
    return f"{config.kind} with eps {config.eps}" if hasattr(config, "eps") else config.kind


def _mixers(config: ModelConfig) -> Iterator[str]:
    mixers = [config.blocks[kind].mixer for kind in config.plan().layer_blocks]
    yield from (f"mixer {mixer.kind!r}" for mixer in mixers if mixer.kind != "gqa")
    first = mixers[0].model_dump(exclude={"window", "backend"})
    if any(mixer.model_dump(exclude={"window", "backend"}) != first for mixer in mixers):
        yield "attention that differs between layers"
    if not mixers[0].causal:
        yield "mixer.causal false"
    if mixers[0].scale_power != 0.5:
        yield f"mixer.scale_power {mixers[0].scale_power}"


_CHECKS: tuple[Callable[[ModelConfig], Iterator[str]], ...] = (_regulators, _ends, _segments, _norms, _mixers)
