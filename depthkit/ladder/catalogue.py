"""The page of all regulators, norms and streams, made from their classes and from models with them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from depthkit import config as configs
from depthkit.files import write_text
from depthkit.ladder.gain_profile import gain_profile, save_profile
from depthkit.ladder.hosts import AXES, Host, host
from depthkit.ladder.operations import operations_per_token
from depthkit.model import ModelConfig, account

DIM, DEPTH, PICTURE_DEPTH = 512, 24, 32
IMAGES = "images"

INTRO = """# Regulators, norms and streams

*Written by `python -m depthkit docs docs/regulators.md` (or `make docs`) from the code; do not edit.*

One visit of a block does, for its mixer and then for its feed-forward,

    x  ->  skip * x  +  write * branch(read * norm(x))

A regulator chooses `read`, `write` and `skip` over depth, and multipliers for the initial std, the learning
rate, the Adam epsilon and the weight decay of parameters. A norm is what stands for `norm`, a stream is how
`x` is carried. l is the 1-based index of a visit, L their number.

What a kind adds is counted at depth {depth} and width {dim}, at its default settings, against the same model
without it (norms: against `rms`, streams: against `single`; a negative number means fewer). Operations are
those of a forward that grow with the number of tokens: matrix products, and one for every element that an
elementwise operation writes or a reduction reads; the share is of the model's forward FLOPs at 1024 tokens.
Where a kind is refused in a Pre-LN model with `rms`, or defeats its purpose there, the model it was put into
is named. Pictures show the gains at depth {picture}, before training.
"""


def write_catalogue(page: Path) -> None:
    """Write the page, and the pictures of gains into `images/` beside it."""
    write_text(page, catalogue())
    for kind in AXES["regulators"].registry.names():
        profile = gain_profile(host("regulators", kind, _raw(16, PICTURE_DEPTH)).model)
        if profile.curves:
            save_profile(profile, kind, page.parent / IMAGES / f"{kind}.png")


def catalogue() -> str:
    """The whole page, in Markdown."""
    parts = [INTRO.format(depth=DEPTH, dim=DIM, picture=PICTURE_DEPTH)]
    for axis in AXES:
        entries = [_entry(axis, kind) for kind in AXES[axis].registry.names()]
        parts += [f"## {axis.capitalize()}\n", _table(entries), *_shared(axis), *(e.text for e in entries)]
    return "\n".join(parts)


@dataclass(frozen=True)
class Entry:
    """One kind: its row in the table, and its section."""

    kind: str
    parameters: int
    operations: float
    share: float
    status: str
    text: str


def _raw(dim: int, depth: int) -> dict[str, Any]:
    # Small branches: what a component adds does not depend on them.
    dense = {
        "mixer": {"kind": "gqa", "num_heads": 8, "num_kv_heads": 1},
        "ffn": {"kind": "swiglu", "hidden_dim": 8},
    }
    segments = [{"name": "core", "pattern": ["dense"], "repeat": depth}]
    return {"model": {"dim": dim, "vocab_size": 64, "blocks": {"dense": dense}, "segments": segments}}


def _full_flops() -> float:
    raw = configs.set_value(_raw(DIM, DEPTH), "model.blocks.dense", {"mixer": {"num_kv_heads": 8}})
    raw["model"]["blocks"]["dense"]["ffn"] = "swiglu"
    return account(ModelConfig.model_validate(raw["model"]), 1024).flops_per_token


def _entry(axis: str, kind: str) -> Entry:
    found = host(axis, kind, _raw(DIM, DEPTH))
    parameters = account(found.model, 16).stored - account(found.without, 16).stored
    operations = operations_per_token(found.model) - _operations(configs.to_yaml(found.without))
    share = operations / _full_flops()
    component = AXES[axis].registry.get(kind)
    status = _status(component)
    text = "\n".join(_section(kind, component, found, status, axis))
    return Entry(kind, parameters, operations, share, status, text)


@lru_cache
def _operations(model: str) -> float:
    """Of a model given as YAML, which many kinds are held against."""
    return operations_per_token(ModelConfig.model_validate(yaml.safe_load(model)))


def _status(component: Any) -> str:
    """`published form`, or how far it is ours, from the class's `status` or the words of its source."""
    if own := getattr(component, "status", ""):
        return own
    source = getattr(component, "source", "")
    return "derived here, at least in part" if "derived" in source else "published form" if source else "-"


def _table(entries: list[Entry]) -> str:
    lines = ["| kind | parameters | operations a token | share | status |", "|---|---:|---:|---:|---|"]
    lines += [
        f"| [{e.kind}](#{e.kind}) | {e.parameters:+,} | {e.operations:+,.0f} | {e.share:+.3%} | {e.status} |"
        for e in entries
    ]
    return "\n".join(lines) + "\n"


def _section(kind: str, component: Any, found: Host, status: str, axis: str) -> Iterator[str]:
    yield f"### {kind}\n"
    yield inspect.cleandoc(component.__doc__ or "") + "\n"
    if component.equation:
        yield f"    {component.equation}\n"
    if source := getattr(component, "source", ""):
        yield f"- Source: {source}. Status: {status}."
    if found.surroundings:
        yield f"- Shown in a model with `{found.surroundings}`."
    yield from _settings(component, frozenset(AXES[axis].base.Config.model_fields))
    if axis == "regulators":
        yield from _gains(kind)
    yield ""


def _shared(axis: str) -> Iterator[str]:
    """The settings that every kind of an axis has."""
    lines = list(_settings(AXES[axis].base, frozenset()))
    if lines:
        yield "Every kind has these settings:\n\n" + "\n".join(lines) + "\n"


def _settings(component: Any, known: frozenset[str]) -> Iterator[str]:
    for name, field in component.Config.model_fields.items():
        if name in known | {"kind"}:
            continue
        default = "required" if field.is_required() else repr(field.get_default(call_default_factory=True))
        yield f"- `{name}` = `{default}`: {' '.join((field.description or '').split())}"


def _gains(kind: str) -> Iterator[str]:
    profile = gain_profile(host("regulators", kind, _raw(16, PICTURE_DEPTH)).model)
    yield f"- At depth {PICTURE_DEPTH}: {'; '.join(profile.words()) or 'nothing'}."
    if profile.curves:
        yield f"\n![Gains of {kind} over depth]({IMAGES}/{kind}.png)"
