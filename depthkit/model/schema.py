"""The typed description of a model: what `model:` in a config file may say."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from depthkit.config import Component
from depthkit.model import registries as axes
from depthkit.model.placement import PlacementField, resolve
from depthkit.model.plan import Plan, Segment, make_plan
from depthkit.registry import Spec, unknown

Norm = Annotated[Any, Component(axes.NORMS, default="rms")]
OuterNorm = Annotated[Any, Component(axes.NORMS, default="rms", switch=True)]
Regulators = list[Annotated[Any, Component(axes.REGULATORS)]]


class BlockConfig(Spec):
    """A kind of block: a token mixer and a feed-forward."""

    mixer: Annotated[Any, Component(axes.MIXERS, default="gqa")]
    """Token mixing."""
    ffn: Annotated[Any, Component(axes.FFNS, default="swiglu")] = Field("swiglu", validate_default=True)
    """Channel mixing."""


class SegmentConfig(Spec):
    """A run of blocks; what is null is taken from the model."""

    name: str = Field(min_length=1)
    """Name of the segment, unique in the model; overrides address it: model.segments.NAME.loops=4."""
    pattern: list[str] = Field(min_length=1)
    """Block kinds, in order."""
    repeat: int = Field(1, ge=1)
    """How many times the pattern is laid out, each time with layers of its own."""
    loops: int = Field(1, ge=1)
    """How many times the whole segment is executed, each time with the same layers."""
    placement: PlacementField | None = None
    """Norm placement in this segment."""
    norm: Norm | None = None
    """Norm in this segment."""
    regulators: Regulators | None = None
    """Regulators that act in this segment instead of the model's."""

    @field_validator("regulators")
    @classmethod
    def _in_segment(cls, regulators: list[Any] | None) -> list[Any] | None:
        return None if regulators is None else [regulator.in_segment() for regulator in regulators]


class ModelConfig(Spec):
    """A transformer composed along its axes: embed, segments of blocks, norm, placement, regulators, head."""

    dim: int = Field(ge=1)
    """Width D of the residual stream."""
    vocab_size: int | None = Field(None, ge=1)
    """Number of tokens; null takes the tokenizer's."""
    embedding_std: float = Field(0.02, gt=0)
    """Standard deviation of the token embedding. At small scale it moves results more than any regulator."""
    init: Annotated[Any, Component(axes.INITS, default="fan_in")] = Field("fan_in", validate_default=True)
    """Distribution of the weight matrices."""
    embed: Annotated[Any, Component(axes.EMBEDS)] = Field("token", validate_default=True)
    """What goes in."""
    head: Annotated[Any, Component(axes.HEADS, default="lm")] = Field("lm", validate_default=True)
    """What comes out."""
    norm: Norm = Field("rms", validate_default=True)
    """Normaliser inside the blocks."""
    final_norm: OuterNorm | None = None
    """Norm before the head: true for the model's `norm`, false for none, or a norm of its own. Null is true,
    except where the last segment has a regulator that is published without (deepnorm, deeploop)."""
    embed_norm: OuterNorm = False
    """Norm on the embedding's output: as `final_norm`. With `placement: sandwich` it makes Peri-LN."""
    placement: PlacementField = "pre"
    """Where blocks normalise: pre, post, reordered, sandwich, huginn, or three of 0 and 1 (before the branch,
    after the branch, after the add)."""
    regulators: Regulators = []
    """Gains and parameter rules over depth; several multiply."""
    stream: Annotated[Any, Component(axes.STREAMS)] = Field("single", validate_default=True)
    """How the residual is carried."""
    blocks: dict[str, BlockConfig] = Field(min_length=1)
    """Named kinds of blocks."""
    segments: list[SegmentConfig] = Field(min_length=1)
    """The blocks in order, with loops."""

    @model_validator(mode="after")
    def _consistent(self) -> ModelConfig:
        names = [segment.name for segment in self.segments]
        if len(set(names)) != len(names):
            raise ValueError(f"segments: names must be unique, got {names}")
        for segment in self.segments:
            for kind in segment.pattern:
                if kind not in self.blocks:
                    sentence = unknown("block", kind, self.blocks)
                    raise ValueError(f"segments.{segment.name}.pattern: {sentence}")
            self._check_norm_sites(segment)
        self._check_conflicts()
        for name, block in self.blocks.items():
            for branch in ("mixer", "ffn"):
                try:
                    getattr(block, branch).check(self.dim)
                except ValueError as error:
                    raise ValueError(f"blocks.{name}.{branch}: {error}") from None
        return self

    def _check_conflicts(self) -> None:
        """Ask every component that has something to refuse: `Config.conflict(model) -> reason or None`."""
        parts = {"stream": self.stream, "norm": self.norm, "head": self.head, "embed": self.embed}
        parts |= {f"regulators.{r.kind}": r for r in self.regulators}
        for segment in self.segments:
            parts |= {f"segments.{segment.name}.{r.kind}": r for r in segment.regulators or []}
            parts |= {f"segments.{segment.name}.norm": segment.norm} if segment.norm is not None else {}
        for path, part in parts.items():
            reason = part.conflict(self) if hasattr(part, "conflict") else None
            if reason:
                raise ValueError(f"{path}: {reason}")

    def _check_norm_sites(self, segment: SegmentConfig) -> None:
        norm, placement = self.norm_of(segment), self.placement_of(segment)
        supported = norm.component.placements
        for site, wanted in placement._asdict().items():
            if wanted and site not in supported:
                raise ValueError(
                    f"segments.{segment.name}: norm {norm.kind!r} does not work {site.replace('_', ' ')}; "
                    f"it supports {', '.join(sorted(supported))}"
                )

    def regulators_of(self, segment: SegmentConfig | None) -> list[Any]:
        """The regulators that act in a segment; None stands for what lies outside all segments."""
        own = None if segment is None else segment.regulators
        return list(self.regulators if own is None else own)

    def acting_regulators(self) -> list[tuple[Any, frozenset[str]]]:
        """Every regulator with the segments it acts in: the model's first, then those of single segments."""
        shared = frozenset(segment.name for segment in self.segments if segment.regulators is None)
        own = [(r, frozenset({segment.name})) for segment in self.segments for r in segment.regulators or []]
        return [(regulator, shared) for regulator in self.regulators] + own

    def norm_gains(self, segment: SegmentConfig | None) -> bool:
        """Whether norms have their own per-channel gain in a segment, or (None) outside all segments."""
        return not any(r.component.owns_norm_gains for r in self.regulators_of(segment))

    def norm_of(self, segment: SegmentConfig) -> Any:
        """The norm config in force in a segment."""
        return segment.norm if segment.norm is not None else self.norm

    def placement_of(self, segment: SegmentConfig) -> Any:
        """The resolved placement in force in a segment."""
        return resolve(segment.placement if segment.placement is not None else self.placement)

    def outer_norm(self, name: str) -> Any:
        """The norm config of `final_norm` or `embed_norm`, or None."""
        setting = getattr(self, name)
        if setting is None:
            setting = all(r.component.keeps_final_norm for r in self.regulators_of(self.segments[-1]))
        return (self.norm.outside() if setting else None) if isinstance(setting, bool) else setting

    def plan(self) -> Plan:
        """The visits this config describes."""
        return make_plan([Segment(s.name, tuple(s.pattern) * s.repeat, s.loops) for s in self.segments])

    def advice(self) -> list[str]:
        """Settings that have no effect, or that defeat each other; one sentence each."""
        used = {kind for segment in self.segments for kind in segment.pattern}
        idle = [f"model.blocks.{name} is used by no segment" for name in self.blocks if name not in used]
        kinds = {regulator.kind for regulator in self.regulators}
        if {"lns", "scaled_init"} <= kinds:
            idle.append("model.regulators: scaled_init cancels much of what lns gains (arXiv:2502.05795)")
        last = self.placement_of(self.segments[-1])
        only_after_add = last.after_add and not last.before_branch  # Huginn and Keel keep their final norm
        if self.outer_norm("final_norm") is not None and only_after_add:
            idle.append(
                "model.final_norm: the last block already normalises after the add; final_norm: false "
                "makes it Post-LN as published"
            )
        return idle
