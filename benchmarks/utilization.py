"""What skipping every layer in turn costs: replayed, against a full forward with a hook for each layer.

    python -m benchmarks.utilization [--quick] [--only SHAPE ...] [--json PATH]

Everything is counted: the baseline, what a replay records, what stacking learns and its canary; `report` is a
whole evaluation with causal effects and lens, canaries and intervals beside what the hook loop computes. The
losses are compared before anything is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.bench.cli import Options, main
from benchmarks.bench.report import Cell, Goal, Report, Table, ranged
from benchmarks.bench.timing import Times, interleave, ratio, spread
from depthkit.model import ModelConfig, Transformer
from depthkit.utilization import Sequences, Subject, evaluate
from depthkit.utilization.edits import skip
from depthkit.utilization.options import ReplayOptions
from depthkit.utilization.replay import Engine

PROBES = ["ablation", "causal", "lens"]
TOLERANCE = 1e-5
"""Nats of a token."""
LOOP = "hook loop"


class Shape(NamedTuple):
    """A model, its windows, how many tokens a stacked call takes, and how often faster a replay should be."""

    dim: int
    depth: int
    vocab: int
    windows: int
    length: int
    tokens: int = 1024
    replay: float = 1.75
    stacked: float = 1.9


SHAPES = {
    "256x32": Shape(256, 32, 4096, 1, 128),
    "256x32-8": Shape(256, 32, 4096, 8, 128, tokens=4096),
    "64x128": Shape(64, 128, 4096, 1, 128, stacked=3.0),
}
QUICK = {
    "256x32": Shape(32, 6, 64, 1, 16),
    "256x32-8": Shape(16, 6, 64, 2, 8, tokens=64),
    "64x128": Shape(16, 9, 64, 1, 8),
}


def make(shape: Shape) -> tuple[Transformer, Sequences]:
    """A fresh model and random windows."""
    mixer = {"kind": "gqa", "num_heads": max(1, shape.dim // 64)}
    model = ModelConfig.model_validate(
        {
            "dim": shape.dim,
            "vocab_size": shape.vocab,
            "blocks": {"dense": {"mixer": mixer, "ffn": "swiglu"}},
            "segments": [{"name": "trunk", "pattern": ["dense"], "repeat": shape.depth}],
        }
    )
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, shape.vocab, (shape.windows, shape.length + 1), generator=generator)
    return Transformer(model, 0).eval(), Sequences.of(ids)


@torch.no_grad()
def hook_loop(model: Transformer, data: Sequences) -> Tensor:
    """Nats `[1 + depth, N, T]` of the model and with each layer skipped, the usual way."""
    found = [nats(model, data)]
    for layer in model.layers:
        handle = layer.register_forward_hook(lambda module, args, output: (args[0], {}))
        found.append(nats(model, data))
        handle.remove()
    return torch.stack(found)


def nats(model: Transformer, data: Sequences) -> Tensor:
    """Of one full forward, `[N, T]`."""
    logits = model.logits(model(data.ids).hidden).float()
    return F.cross_entropy(logits.flatten(0, 1), data.targets.flatten(), reduction="none").view_as(
        data.targets
    )


def sweep(model: Transformer, data: Sequences, tokens: int, stack: bool) -> tuple[Tensor, Engine]:
    """The same by replay."""
    engine = Engine(Subject(model), data, tokens, options=ReplayOptions(stack=stack))
    with engine.subject.frozen():
        traces = engine.record()
        assert len(traces) == 1
        steps = engine.sweep(traces, [skip(visit) for visit in range(traces[0].depth)])
        found = {step.edit.first: step.scores.nats for step in steps if step.scores}
    return torch.stack([traces[0].scores.nats, *(found[visit] for visit in range(len(found)))]), engine


def compare(wanted: Tensor, **found: Tensor) -> dict[str, float]:
    """Largest difference of a token's loss, by way.

    Raises:
        SystemExit: it is beyond rounding; of `replay`, it is not 0.
    """
    off = {name: float((losses - wanted).abs().max()) for name, losses in found.items()}
    if max(off.values()) > TOLERANCE or off.get("replay"):
        raise SystemExit(f"the losses are not those of the hook loop: {off}")
    return off


def measure(shape: Shape, rounds: int) -> dict[str, Any]:
    """Compare, then time every way in turn."""
    model, data = make(shape)
    (replayed, engine), (stacked, other) = (sweep(model, data, shape.tokens, way) for way in (False, True))
    if not other.cost()["stacked"]:
        raise SystemExit("nothing was stacked")
    off = compare(hook_loop(model, data), replay=replayed, stacked=stacked)
    report = evaluate(model, data, PROBES, batch_tokens=shape.tokens)
    ways: dict[str, Callable[[], Any]] = {
        LOOP: lambda: hook_loop(model, data),
        "replay": lambda: sweep(model, data, shape.tokens, stack=False),
        "stacked": lambda: sweep(model, data, shape.tokens, stack=True),
        "report": lambda: evaluate(model, data, PROBES, batch_tokens=shape.tokens),
    }
    evals = {"sweep": engine.layer_evals, "report": report.content["timing"]["layer_evals"]}
    evals[LOOP] = shape.depth * (1 + shape.depth)
    return {**shape._asdict(), "off": off, "layer_evals": evals, "seconds": interleave(ways, rounds)}


def row(found: dict[str, Any]) -> list[Cell]:
    """One line of the table."""
    times: Times = found["seconds"]
    evals = found["layer_evals"]
    return [
        f"{found['dim']}x{found['depth']} V{found['vocab']} {found['windows']}x{found['length']}",
        f"{evals['report']} / {evals[LOOP]}",
        spread(times[LOOP]).median,
        *(ranged(ratio(times[LOOP], times[way])) for way in ("replay", "stacked", "report")),
        f"{found['off']['stacked']:.0e}",
    ]


def fill(options: Options, report: Report) -> None:
    """Every wanted shape, its goals, and one table."""
    shapes = QUICK if options.quick else SHAPES
    found = {name: measure(shape, options.rounds) for name, shape in shapes.items() if options.wanted(name)}
    columns = ["", "evaluations", f"{LOOP} (s)", "replay", "stacked", "report", "stacked is off by"]
    title = f"Every layer skipped in turn: layer evaluations, and times as fast as the {LOOP}"
    report.tables.append(Table(title, columns, [row(each) for each in found.values()]))
    for name, each in found.items():
        report.measurements.append({"shape": name, **each})
        for way in ("replay", "stacked"):
            value = ratio(each["seconds"][LOOP], each["seconds"][way]).median
            label = f"{each['dim']}x{each['depth']} {each['windows']}x{each['length']}, {way}: times as fast"
            report.goals.append(Goal(label, "at least", each[way], value))


if __name__ == "__main__":
    main("utilization", __doc__ or "", tuple(SHAPES), rounds=2, fill=fill)
