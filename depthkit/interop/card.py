"""The model card of an export: the model, its data, its loss, and what its depth does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from depthkit import __version__
from depthkit.interop import runs
from depthkit.interop.convert import OWN
from depthkit.model import Plan, account
from depthkit.registry import Spec
from depthkit.training import metrics
from depthkit.training.checkpoint import Loaded
from depthkit.utilization import Report
from depthkit.utilization.report.summary import summarise


class Facts(NamedTuple):
    """What a card is made of."""

    loaded: Loaded
    """The checkpoint that was exported."""
    family: str
    """The architecture it was written as."""
    reason: str | None
    """Why that is not a stock one."""
    no_tokenizer: str | None
    """Why there is no tokenizer."""


def model_card(facts: Facts) -> str:
    """README.md in Markdown, with the header that the hub reads."""
    header = yaml.safe_dump(
        {"library_name": "transformers", "tags": ["depthkit"], "pipeline_tag": "text-generation"}
    )
    parts = [
        ("", _opening(facts)),
        ("Use", _use(facts)),
        ("Plan", _plan(facts.loaded)),
        ("Data and training", _training(facts.loaded)),
        ("Loss", _loss(facts.loaded)),
        ("Utilization of depth", _utilization(facts.loaded)),
    ]
    sections = (f"## {title}\n\n{text}" if title else text for title, text in parts if text)
    return f"---\n{header}---\n\n" + "\n\n".join(sections) + "\n"


def run_folder(loaded: Loaded) -> Path:
    """The run that a checkpoint belongs to."""
    return loaded.path.parent.parent


def _opening(facts: Facts) -> str:
    loaded = facts.loaded
    regulators = [r.kind for r, _ in loaded.config.model.acting_regulators()]
    folded = f" The gains of {', '.join(regulators)} are folded into its weights." if regulators else ""
    name = f"# {run_folder(loaded).name}, step {loaded.step}\n\n"
    origin = _origin(runs.origin_of(run_folder(loaded)))
    if facts.family != OWN:
        return f"{name}A {facts.family} model, written by depthkit {__version__}.{folded}{origin}"
    return f"{name}A model in the architecture of depthkit {__version__} ({facts.reason}).{origin}"


def _origin(facts: dict[str, Any]) -> str:
    """Where a run's first weights are from, if not from an initialisation."""
    name = facts.get("imported") or facts.get("run")
    return f" Its weights are made of those of {name}." if name else ""


def _use(facts: Facts) -> str:
    own = ["import depthkit  # lets transformers know the architecture"] if facts.family == OWN else []
    code = [*own, "from transformers import AutoModelForCausalLM, AutoTokenizer", "", 'FOLDER = "."']
    code.append("model = AutoModelForCausalLM.from_pretrained(FOLDER)")
    if facts.no_tokenizer is None:
        code.append("tokenizer = AutoTokenizer.from_pretrained(FOLDER)")
    note = "" if facts.no_tokenizer is None else f"\n\n{facts.no_tokenizer}."
    return "```python\n" + "\n".join(code) + "\n```" + note


def _plan(loaded: Loaded) -> str:
    model = loaded.config.model
    plan = model.plan()
    counts = account(model, loaded.config.data.sequence_length)
    rows = [
        "| segment | layers | loops | visits | norm | placement | regulators |",
        "|---|---|---|---|---|---|---|",
    ]
    rows += [" | ".join(row) for row in _segments(loaded, plan)]
    words = (
        f"Depth {plan.depth} (visits) of {plan.num_layers} layers, width {model.dim}; {counts.stored:,} "
        f"parameters stored, {counts.active:,} active, {counts.flops_per_token:,.0f} forward FLOPs a token."
    )
    return words + "\n\n" + "\n".join(rows)


def _segments(loaded: Loaded, plan: Plan) -> Iterator[list[str]]:
    model = loaded.config.model
    for segment in model.segments:
        visits = [visit for visit in plan.visits if visit.key.segment == segment.name]
        regulators = ", ".join(r.kind for r in model.regulators_of(segment)) or "none"
        placement = segment.placement if segment.placement is not None else model.placement
        cells = [len({visit.layer for visit in visits}), segment.num_loops, len(visits)]
        yield [
            f"| {segment.name}",
            *map(str, cells),
            model.norm_of(segment).kind,
            str(placement),
            f"{regulators} |",
        ]


def _training(loaded: Loaded) -> str:
    config = loaded.config
    text = yaml.safe_dump(
        {"data": _given(config.data), "train": _given(config.train)},
        sort_keys=False,
        default_flow_style=False,
    )
    tokens = loaded.step * config.train.tokens_per_step(config.data.sequence_length)
    return f"{loaded.step:,} of {config.total_steps:,} steps, {tokens:,} tokens.\n\n```yaml\n{text}```"


def _given(settings: Spec) -> dict[str, Any]:
    """The settings without those that stand at their default; what has a kind keeps it."""
    found: dict[str, Any] = {}
    for name, field in type(settings).model_fields.items():
        value, default = getattr(settings, name), field.get_default(call_default_factory=True)
        if isinstance(value, Spec):
            value = _given(value)
            default = {"kind": default} if isinstance(default, str) else default
        if name == "kind" or value != default:
            found[name] = value
    return found


def _loss(loaded: Loaded) -> str:
    rows = [
        row
        for event in ("validation", "end")
        for row in metrics.read(run_folder(loaded) / "metrics.jsonl", event)
        if row["step"] == loaded.step and row.get("val_loss") is not None
    ]
    if not rows:
        return "No held-out loss was measured at this step."
    last = rows[-1]
    bits = last.get("bits_per_byte")
    return f"Held-out loss {last['val_loss']:.4f} nats a token" + (
        f", {bits:.4f} bits a byte." if bits else "."
    )


def _utilization(loaded: Loaded) -> str:
    folder = run_folder(loaded)
    places = [folder / "reports" / loaded.path.name, folder]
    found = [place for place in places if (place / "report.json").is_file()]
    if not found:
        return (
            "Not measured: `python eval.py RUN` writes a report into the run's folder, and export reads it."
        )
    try:
        report = Report.load(found[0])
    except ValueError as error:
        return f"Not shown: {error}."
    step = report.content["model"].get("step", loaded.step)
    if step != loaded.step:
        return f"Not measured at this step: the report in the run's folder is of step {step}."
    return "\n".join(f"- {sentence}" for sentence in summarise(report))
