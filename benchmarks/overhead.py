"""What a layer costs beside arithmetic: steps of 8 tokens, regulators, and the import.

    python -m benchmarks.overhead [--quick] [--only step regulators import] [--json PATH]

Steps of 1 x 8 tokens at width 64 and 32 layers (4 with --quick), divided by the layers (head, embedding and
optimiser included); every regulator with one residual stream beside the same model without, at width 64 and
32 layers, 4 x 256 tokens; and imports in fresh interpreters that have torch already.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from benchmarks.bench.cli import Options, main
from benchmarks.bench.contenders import BASE, gather
from benchmarks.bench.isolate import isolated
from benchmarks.bench.ours import Ours, mapping
from benchmarks.bench.report import Cell, Goal, Report, Table, ranged
from benchmarks.bench.shapes import PRECISIONS, Shape
from benchmarks.bench.timing import Spread, Times, interleave, ratio, spread
from depthkit.ladder.hosts import host
from depthkit.model.registries import REGULATORS

TINY, REGULATED = Shape(64, 32, batch=1, length=8), Shape(64, 32)
QUICK_DEPTH = 4
TIMES = 6
"""Rounds of tiny steps for each round asked for; they are short and noisy."""
PAIRS = 3
"""Rounds of a regulator beside none for each round asked for; what is looked for is a few percent."""
PER_LAYER_MS, TIMES_AS_FAST = {"fp32": 0.40, "bf16": 0.60}, {"fp32": 2.0, "bf16": 2.1}
"""The goal, set on a machine where transformers takes 0.81 and 1.27 ms, and the same as a ratio to it."""
REGULATOR_COST, IMPORT_SECONDS = 1.03, 0.5
SIMPLE = ("lns", "layer_scale")
"""Regulators of --quick."""
MODULES = ("depthkit", "depthkit.api", "depthkit.training.session", "depthkit.utilization")
"""What is imported: the package, what builds and loads models, what trains, what measures."""
IMPORT_GOALS = MODULES[:2]


def measure_step(depth: int, rounds: int, compiled: bool) -> list[dict[str, Any]]:
    """Times of 8-token steps in each precision."""
    found = []
    for precision in PRECISIONS:
        everyone = gather(TINY.at(depth=depth, precision=precision), compiled)
        steps = {name: candidate.step for name, candidate in everyone.candidates.items()}
        times = interleave(steps, TIMES * rounds, warm_up=3)
        found.append({"precision": precision, "depth": depth, "seconds": times, "notes": everyone.notes})
    return found


def measure_regulators(kinds: list[str], depth: int, rounds: int) -> dict[str, Times]:
    """Times of a model with each regulator and of the same model without, by regulator."""
    shape = REGULATED.at(depth=depth)
    found = {}
    for kind in kinds:
        settings = dict(host("regulators", kind, mapping(shape)).settings)
        regulators = settings.pop("model.regulators")
        surroundings = tuple(f"{key}={str(value).lower()}" for key, value in settings.items())
        own = f"model.regulators=[{', '.join(regulators)}]"
        pair = {"plain": Ours(shape, surroundings), kind: Ours(shape, (*surroundings, own))}
        found[kind] = interleave({name: model.step for name, model in pair.items()}, PAIRS * rounds)
    return found


def import_seconds(module: str) -> float:
    """CPU seconds of importing a module where torch is imported already."""
    code = f"import time, torch; t = time.process_time(); import {module}; print(time.process_time() - t)"
    run = [sys.executable, "-c", code]
    return float(subprocess.run(run, check=True, capture_output=True, text=True).stdout)


def step_table(precision: str, depth: int, times: Times) -> Table:
    """Milliseconds a layer."""
    rows: list[list[Cell]] = []
    for name, seconds in times.items():
        each = Spread(*(1e3 * value / depth for value in spread(seconds)))
        against = ranged(ratio(times[BASE], seconds)) if BASE in times else None
        rows.append([name, ranged(each, 3), against])
    columns = ["", "ms a layer", f"times as fast as {BASE}"]
    return Table(f"Step of 8 tokens, {TINY.dim} x {depth} layers, {precision}", columns, rows)


def fill_steps(options: Options, report: Report) -> None:
    """Tiny steps; the goal is the fastest variant's."""
    depth = QUICK_DEPTH if options.quick else TINY.depth
    for found in isolated(measure_step, depth, options.rounds, not options.quick):
        precision, times = found["precision"], found["seconds"]
        report.tables.append(step_table(precision, depth, times))
        report.notes.extend(found.pop("notes"))
        report.measurements.append(found)
        each = {
            name: 1e3 * spread(s).median / depth for name, s in times.items() if name.startswith("depthkit")
        }
        best = min(each, key=lambda name: each[name])
        name = f"{best}: ms a layer and step of 8 tokens, {precision}"
        report.goals.append(Goal(name, "at most", PER_LAYER_MS[precision], each[best]))
        value = ratio(times[BASE], times[best]).median if BASE in times else None
        name = f"{best}: step of 8 tokens, {precision}, times as fast as {BASE}"
        report.goals.append(Goal(name, "at least", TIMES_AS_FAST[precision], value))


def fill_regulators(options: Options, report: Report) -> None:
    """Every regulator beside the same model without."""
    kinds = list(SIMPLE) if options.quick else REGULATORS.names()
    depth = QUICK_DEPTH if options.quick else REGULATED.depth
    found = isolated(measure_regulators, kinds, depth, options.rounds)
    ratios = {kind: ratio(times[kind], times["plain"]) for kind, times in found.items()}
    rows: list[list[Cell]] = [[kind, ranged(costs, 3)] for kind, costs in ratios.items()]
    title = f"Regulators, step time over the same model's without, {REGULATED.dim} x {depth} layers, fp32"
    report.tables.append(Table(title, ["regulator", "times the plain step"], rows))
    report.measurements.append({"regulators": found})
    worst = max(ratios, key=lambda kind: ratios[kind].median)
    name = f"costliest regulator ({worst}), times the plain step"
    report.goals.append(Goal(name, "at most", REGULATOR_COST, ratios[worst].median))


def fill_import(options: Options, report: Report) -> None:
    """Imports, in fresh interpreters that take turns."""
    times: Times = {module: [] for module in MODULES}
    for _ in range(options.rounds):
        for module, seconds in times.items():
            seconds.append(import_seconds(module))
    rows: list[list[Cell]] = [[f"import {module}", ranged(spread(s))] for module, s in times.items()]
    report.tables.append(Table("Imports where torch is imported already", ["", "CPU seconds"], rows))
    report.measurements.append({"import": times})
    for module in IMPORT_GOALS:
        name = f"import {module} after torch, CPU seconds"
        report.goals.append(Goal(name, "at most", IMPORT_SECONDS, spread(times[module]).median))


PARTS = {"step": fill_steps, "regulators": fill_regulators, "import": fill_import}


def fill(options: Options, report: Report) -> None:
    """What is wanted of the three."""
    for name, part in PARTS.items():
        if options.wanted(name):
            part(options, report)


if __name__ == "__main__":
    main("overhead", __doc__, tuple(PARTS), rounds=5, fill=fill)
