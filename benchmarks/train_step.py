"""A training step beside transformers, litgpt and x-transformers, and its share of what the machine can do.

    python -m benchmarks.train_step [--quick] [--only dim64 dim128 dim256] [--json PATH]

Widths 64, 128 and 256 at 256, 64 and 16 layers (an eighth with --quick, and nothing compiled), 4 x 256
tokens, fp32 and bf16, eager and compiled. Everyone has the same weights and takes the same step: zero
gradients, forward, cross-entropy, backward, clip to 1, fused AdamW.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from benchmarks.bench import limit
from benchmarks.bench.cli import Options, main
from benchmarks.bench.contenders import BASE, gather
from benchmarks.bench.isolate import isolated
from benchmarks.bench.report import Cell, Goal, Report, Table, ranged
from benchmarks.bench.shapes import PRECISIONS, QUICK, SHAPES, Shape
from benchmarks.bench.timing import Times, interleave, ratio, spread

GOALS = {"fp32": {64: 1.4, 128: 1.15, 256: 1.1}, "bf16": {64: 2.2, 128: 1.6, 256: 1.5}}
"""How many times faster than eager transformers the fastest variant should be."""
SHARE = 0.9
"""Least share of the limit, in fp32."""


def measure(shape: Shape, rounds: int, compiled: bool) -> list[dict[str, Any]]:
    """Times of everyone and of the limit's parts, interleaved, in each precision."""
    found = []
    for precision in PRECISIONS:
        own = shape.at(precision=precision)
        everyone = gather(own, compiled)
        steps = {name: candidate.step for name, candidate in everyone.candidates.items()}
        times = interleave({**steps, **limit.parts(own)}, rounds)
        found.append({"shape": asdict(own), "seconds": times, "notes": everyone.notes})
    return found


def tabulate(shape: Shape, times: Times) -> Table:
    """A row for every candidate and every part of the limit."""
    whole, scale = limit.whole(times, shape), shape.depth / limit.sampled(shape)
    rows: list[list[Cell]] = []
    for name, seconds in times.items():
        if name in limit.PARTS:
            continue
        median = spread(seconds).median
        against = ranged(ratio(times[BASE], seconds)) if BASE in times else None
        share = ranged(ratio(whole, seconds))
        rows.append([name, 1e3 * median, f"{shape.tokens / median:,.0f}", against, share])
    for part in limit.PARTS:
        factor = 1.0 if part == limit.HEAD else scale
        rows.append([part, 1e3 * factor * spread(times[part]).median, None, None, None])
    rows.append(["limit", 1e3 * spread(whole).median, None, None, None])
    columns = ["", "ms a step", "tokens/s", f"times as fast as {BASE}", "limit / step"]
    return Table(f"Training step, {shape.label} layers, {shape.precision}", columns, rows, digits=1)


def fastest(times: Times) -> str:
    """The fastest variant of depthkit."""
    ours = [name for name in times if name.startswith("depthkit")]
    return min(ours, key=lambda name: spread(times[name]).median)


def goals(shape: Shape, times: Times) -> list[Goal]:
    """Ratios to every peer and to the limit."""
    best, where = fastest(times), f"{shape.label} {shape.precision}"
    found = []
    for peer, bound in ((BASE, GOALS[shape.precision][shape.dim]), ("litgpt", 1.0), ("x-transformers", 1.0)):
        value = ratio(times[peer], times[best]).median if peer in times else None
        found.append(Goal(f"{where}: {best}, times as fast as {peer}", "at least", bound, value))
    if not shape.bf16:
        share = ratio(limit.whole(times, shape), times[best]).median
        found.append(Goal(f"{where}: {best}, share of the limit", "at least", SHARE, share))
    return found


def fill(options: Options, report: Report) -> None:
    """Measure every width in a process of its own."""
    for name, full in SHAPES.items():
        if not options.wanted(name):
            continue
        depth = full.depth // QUICK if options.quick else full.depth
        for found in isolated(measure, full.at(depth=depth), options.rounds, not options.quick):
            shape, times = Shape(**found["shape"]), found["seconds"]
            report.tables.append(tabulate(shape, times))
            report.goals.extend(goals(shape, times))
            report.notes.extend(found.pop("notes"))
            report.measurements.append(found)


if __name__ == "__main__":
    main("train_step", __doc__, tuple(SHAPES), rounds=5, fill=fill)
