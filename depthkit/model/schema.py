"""The typed description of a model: what `model:` in a config file may say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from depthkit.config import Component
from depthkit.model import registries as axes
from depthkit.model.loops import registries as looping
from depthkit.model.loops.samplers import LoopCount, SamplerConfig
from depthkit.model.placement import PlacementField, resolve
from depthkit.model.plan import Plan, Segment, make_plan
from depthkit.registry import Spec, unknown

Norm = Annotated[Any, Component(axes.NORMS, default="rms")]
OuterNorm = Annotated[Any, Component(axes.NORMS, default="rms", switch=True)]
LoopNorm = Annotated[Any, Component(axes.NORMS, default="rms", switch=True)]
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
    loops: Annotated[Any, LoopCount()] = 1
    """How often the whole segment is executed: a number, or a sampler such as {kind: uniform, max: 8}."""
    shared: bool = True
    """Whether every loop has the same layers; false stores layers for every loop there can be."""
    inject: Annotated[Any, Component(looping.INJECTS)] = Field("none", validate_default=True)
    """How what the segment is given is put in again at every loop."""
    state_init: Annotated[Any, Component(looping.STATES)] = Field("embedding", validate_default=True)
    """What the first loop starts from; embedding is what the segment is given."""
    carry: Annotated[Any, Component(looping.CARRIES)] = Field("none", validate_default=True)
    """Looping residual: what earlier loops put out, added to the start of the next one."""
    readout: Annotated[Any, Component(looping.READOUTS)] = Field("last", validate_default=True)
    """What the segment hands on."""
    out_norm: LoopNorm | Literal["final"] = False
    """Norm on what the segment hands on: true for the segment's, final for the very norm before the head."""
    loop_embedding: bool = False
    """A learned vector for every loop, added where it starts; zero at first."""
    placement: PlacementField | None = None
    """Norm placement in this segment."""
    norm: Norm | None = None
    """Norm in this segment."""
    regulators: Regulators | None = None
    """Regulators that act in this segment instead of the model's."""

    @property
    def num_loops(self) -> int:
        """The nominal loop count: of evaluation, of accounting, of depth indices."""
        return self.loops.nominal if isinstance(self.loops, SamplerConfig) else self.loops

    @property
    def longest_loops(self) -> int:
        """The most loops a training step can have."""
        return self.loops.longest if isinstance(self.loops, SamplerConfig) else self.loops

    @property
    def backprop(self) -> int | None:
        """How many of the last loops are differentiated; None for all."""
        return self.loops.backprop if isinstance(self.loops, SamplerConfig) else None

    @property
    def recurs(self) -> bool:
        """Whether anything happens between its visits, so that it is more than its blocks in a row."""
        kinds = (self.inject.kind, self.state_init.kind, self.carry.kind, self.readout.kind)
        settings = (self.loop_embedding, self.out_norm is not False)
        return kinds != ("none", "embedding", "none", "last") or any(settings)

    def laid_out(self, loops: int) -> Segment:
        """The segment in a plan with so many loops."""
        copies = 1 if self.shared else self.longest_loops
        return Segment(self.name, tuple(self.pattern) * self.repeat, loops, copies)

    @model_validator(mode="after")
    def _loop_settings_agree(self) -> SegmentConfig:
        if self.inject.acts:
            return self
        if self.backprop is not None:
            raise ValueError(
                f"loops.backprop ({self.backprop}) needs an injection: without one, what comes before the "
                "segment would get no gradient; set inject, such as inject: linear"
            )
        if not self.state_init.component.is_input:
            raise ValueError(
                f"state_init {self.state_init.kind!r} needs an injection: without one the segment never sees "
                "its input; set inject, such as inject: linear"
            )
        return self

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
            if segment.out_norm == "final" and self.outer_norm("final_norm") is None:
                raise ValueError(
                    f"segments.{segment.name}.out_norm: 'final', but the model has no final norm"
                )
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

    def out_norm_of(self, segment: SegmentConfig) -> Any:
        """The config of a segment's own `out_norm`, or None."""
        if isinstance(segment.out_norm, bool | str):
            return self.norm_of(segment).outside() if segment.out_norm is True else None
        return segment.out_norm

    def plan(self, loops: int | Mapping[str, int] | None = None) -> Plan:
        """The visits this config describes, at its nominal loop counts or at others.

        Args:
            loops: loop count of every looped segment, or by name of segment (the others stay nominal).

        Raises:
            ValueError: a count below 1, a segment that is not there, or more loops than an unshared one has.
        """
        nominal = {segment.name: segment.num_loops for segment in self.segments}
        sampled = any(isinstance(segment.loops, SamplerConfig) for segment in self.segments)
        base = replace(self._laid_out(nominal), sampled=sampled)
        counts = nominal | self._counts(loops)
        return base if counts == nominal else replace(self._laid_out(counts), nominal=base, sampled=sampled)

    def longest_plan(self) -> Plan:
        """The plan at the most loops that training can have: what tables by visit have rows for."""
        return self.plan({segment.name: segment.longest_loops for segment in self.segments})

    def _laid_out(self, counts: Mapping[str, int]) -> Plan:
        return make_plan([segment.laid_out(counts[segment.name]) for segment in self.segments])

    def _counts(self, loops: int | Mapping[str, int] | None) -> dict[str, int]:
        by_name = {segment.name: segment for segment in self.segments}
        if isinstance(loops, int):
            looped = [s.name for s in self.segments if s.longest_loops > 1 or s.recurs]
            if not looped and loops != 1:
                raise ValueError(f"loops: {loops}, but no segment of this model is looped")
            loops = dict.fromkeys(looped, loops)
        for name, count in (loops or {}).items():
            if name not in by_name:
                raise ValueError(f"loops: {unknown('segment', name, by_name)}")
            longest = by_name[name].longest_loops
            if count < 1 or (not by_name[name].shared and count > longest):
                limit = f"1 to {longest}" if not by_name[name].shared else "1 or more"
                raise ValueError(f"loops: segment {name!r} can be run {limit} times, not {count}")
        return dict(loops or {})

    def advice(self) -> list[str]:
        """Settings that have no effect, or that defeat each other; one sentence each."""
        used = {kind for segment in self.segments for kind in segment.pattern}
        idle = [f"model.blocks.{name} is used by no segment" for name in self.blocks if name not in used]
        for segment in self.segments:
            if segment.longest_loops == 1 and (segment.carry.acts or not segment.shared):
                setting = "carry" if segment.carry.acts else "shared"
                idle.append(f"model.segments.{segment.name}.{setting} has no effect with one loop")
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
