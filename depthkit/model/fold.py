"""Gains folded into weights: the same function from a config without regulators.

    x  ->  x  +  write * branch(read * norm(x))

`read` goes into the gain of the norm before the branch, or where there is none into the columns of the
branch's input matrices; `write` into the gain of the norm after the branch, or into the rows of its output
matrix; `embed`, `final` and `logits` into the embedding, the final norm and the head.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from depthkit.model.block import Block, Site
from depthkit.model.gains import BRANCHES, Gains, SiteGains, compose
from depthkit.model.norms.base import Norm
from depthkit.model.norms.none import NoNorm
from depthkit.model.plan import Visit
from depthkit.model.roles import OUTPUTS, role_table
from depthkit.model.schema import ModelConfig, SegmentConfig
from depthkit.model.transformer import Transformer

INPUTS = frozenset({"q", "k", "v", "gate", "up", "router"})
"""Roles of matrices that multiply what the branch reads."""

Pair = tuple[SiteGains, SiteGains]


@torch.no_grad()
def fold(model: Transformer) -> Transformer:
    """A model without regulators whose logits equal those of `model` in evaluation up to rounding.

    Segments whose layers are visited with different gains are unrolled, so that each visit has a layer of its
    own. What regulators say about initialisation and optimiser is lost: the result is for inference,
    analysis and export.

    Raises:
        ValueError: a skip gain other than 1, which no weight can take, or a norm that needs the gains.
    """
    gains = model.schedules(model.plan, None, False, model.embed.weight.device)
    per_visit = gains.per_visit(model.plan.depth)
    _check_skip(gains.skip, model)
    _check_norms(model, per_visit)
    folded = Transformer(_without_regulators(model.config, _torn(model, per_visit), gains))
    folded.to(model.embed.weight.device, model.embed.weight.dtype)
    _copy_weights(model, folded)
    for layer, pair in _first_gains(folded, per_visit).items():
        block = folded.layers[layer]
        assert isinstance(block, Block)
        for site, site_gains in zip((block.mixer, block.ffn), pair, strict=True):
            _fold_site(site, site_gains)
    _fold_ends(folded, gains)
    return folded.train(model.training)


def _check_skip(skip: Tensor | None, model: Transformer) -> None:
    if skip is None:
        return
    for visit, rows in zip(model.plan.visits, skip, strict=True):
        for branch, row in zip(BRANCHES, rows, strict=True):
            if bool((row != 1).any()):
                raise ValueError(
                    f"cannot fold the skip gain {row.mean().item():.4g} of the {branch} at visit "
                    f"{visit.index}: no weight multiplies the carried stream, and dividing the gain out of "
                    "what is added would change the epsilon of the norms; only skip = 1 folds"
                )


def _check_norms(model: Transformer, per_visit: list[Pair]) -> None:
    for visit, pair in zip(model.plan.visits, per_visit, strict=True):
        block = model.layers[visit.layer]
        assert isinstance(block, Block)
        present = any(gain is not None for site in pair for gain in site)
        for branch, site in zip(BRANCHES, (block.mixer, block.ffn), strict=True):
            if present and site.before.uses_gains:
                kind = site.before.config.kind
                raise ValueError(
                    f"cannot fold gains under norm {kind!r}: before the {branch} it estimates a variance "
                    "from the gains, which a folded model no longer has"
                )


def _torn(model: Transformer, per_visit: list[Pair]) -> frozenset[str]:
    """The segments in which some layer is visited with different gains."""
    first: dict[int, Pair] = {}
    torn = set()
    for visit, pair in zip(model.plan.visits, per_visit, strict=True):
        if not _equal(first.setdefault(visit.layer, pair), pair):
            torn.add(visit.key.segment)
    segments = [segment for segment in model.config.segments if segment.name in torn]
    sampled = [s.name for s in segments if s.longest_loops != s.num_loops]
    if sampled:
        raise ValueError(
            f"cannot fold the gains of segment {sampled[0]!r}: they differ by loop, and their number is "
            "sampled, so there is no layer to fold each into; give it a fixed number of loops"
        )
    return frozenset(torn)


def _equal(a: Pair, b: Pair) -> bool:
    gains = ((x, y) for one, other in zip(a, b, strict=True) for x, y in zip(one, other, strict=True))
    return all(y is None if x is None else y is not None and torch.equal(x, y) for x, y in gains)


def _without_regulators(config: ModelConfig, torn: frozenset[str], gains: Gains) -> ModelConfig:
    """The config of the folded model: no regulators, torn segments written out, ends as they were."""
    final = config.outer_norm("final_norm") or False
    head = config.head
    if getattr(head, "tied", False) and _head_differs(gains, config.outer_norm("final_norm")):
        head = head.model_copy(update={"tied": False})
    segments = [_written_out(segment, segment.name in torn) for segment in config.segments]
    return config.model_copy(
        update={"regulators": [], "segments": segments, "final_norm": final, "head": head}
    )


def _head_differs(gains: Gains, final_norm: Any) -> bool:
    """Whether the head's matrix can no longer be the embedding's."""
    takes_gain = final_norm is not None and not issubclass(final_norm.component, NoNorm)
    return gains.embed is not None or (not takes_gain and _before_head(gains) is not None)


def _written_out(segment: SegmentConfig, torn: bool) -> SegmentConfig:
    """With layers of their own for every loop where gains tear the loops apart; keys stay as they are."""
    loops = {"loops": segment.num_loops, "shared": False} if torn else {}
    return segment.model_copy(update={"regulators": None, **loops})


def _copy_weights(model: Transformer, folded: Transformer) -> None:
    """Everything `model` has; norm gains it lacks stay as they start, at one."""
    ours, theirs = folded.state_dict(), model.state_dict()
    for name, value in theirs.items():
        if not name.startswith(("layers.", "schedules.regulators.")):
            ours[name].copy_(value)
    if model.head.weight is None and folded.head.weight is not None:
        folded.head.weight.copy_(model.embed.weight)
    for visit, source in _visits(folded, model):
        layer = folded.layers[visit.layer].state_dict()
        for name, value in model.layers[source.layer].state_dict().items():
            layer[name].copy_(value)


def _visits(folded: Transformer, model: Transformer) -> Iterable[tuple[Visit, Visit]]:
    return zip(folded.plan.visits, model.plan.visits, strict=True)


def _first_gains(folded: Transformer, per_visit: list[Pair]) -> dict[int, Pair]:
    """The gains of every stored layer; where it has several visits they are the same."""
    pairs = zip(folded.plan.visits, per_visit, strict=True)
    return {visit.layer: pair for visit, pair in reversed(list(pairs))}


def _fold_site(site: Site, gains: SiteGains) -> None:
    if gains.read is not None and not _into_norm(site.before, gains.read):
        if getattr(getattr(site.branch, "config", None), "router", None) == "per_loop":
            raise ValueError("cannot fold read gains into routers of single visits where no norm takes them")
        for matrix in _matrices(site.branch, INPUTS):
            matrix.mul_(gains.read)  # columns: the last dimension is what is read
    if gains.write is not None and not _into_norm(site.after_branch, gains.write):
        for matrix in _matrices(site.branch, OUTPUTS):
            matrix.mul_(gains.write[:, None])


def _matrices(branch: nn.Module, roles: frozenset[str]) -> list[nn.Parameter]:
    return [branch.get_parameter(name) for name, role in role_table(branch).items() if role in roles]


def _into_norm(norm: Norm, gain: Tensor | None) -> bool:
    """Multiply what `norm` gives; False where nothing stands there that could take a gain."""
    if isinstance(norm, NoNorm) or gain is None:
        return False
    for name in ("weight", "bias"):
        parameter = getattr(norm, name, None)
        assert parameter is not None or name == "bias", f"{type(norm).__name__} has no gain to fold into"
        if parameter is not None:
            parameter.mul_(gain)
    return True


def _fold_ends(folded: Transformer, gains: Gains) -> None:
    if gains.embed is not None:
        folded.embed.weight.mul_(gains.embed)
    final = _before_head(gains)
    if final is not None and not _into_norm(folded.final_norm, final):
        assert folded.head.weight is not None
        folded.head.weight.mul_(final)


def _before_head(gains: Gains) -> Tensor | None:
    """The head is linear, so a gain on the logits is a gain on what it reads."""
    return compose([Gains(final=gains.final), Gains(final=gains.logits)]).final
