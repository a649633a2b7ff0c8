"""What grows with depth, and how: step, start-up, compilation, checkpoint, memory, from 8 to 512 layers.

    python -m benchmarks.depth_scaling [--quick] [--only size compile checkpointing] [--json PATH]

Width 128, 4 x 256 tokens, fp32, every depth and every mode of activation checkpointing in a process of its
own (4 and 8 layers, two modes and no compilation with --quick). Step and start-up are CPU time; compilation
(into an empty cache) and checkpoints are wall time. Memory is the process's peak beyond what it held after
its imports; activations are what is left of it without weights, gradients and optimiser state, 16 bytes a
parameter.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.bench import process
from benchmarks.bench.cli import Options, main
from benchmarks.bench.isolate import isolated
from benchmarks.bench.ours import Ours
from benchmarks.bench.report import Cell, Goal, Report, Table, ranged
from benchmarks.bench.shapes import Shape
from benchmarks.bench.timing import interleave, line, ratio, spread
from depthkit.model.registries import CHECKPOINTING
from depthkit.training import checkpoint, optim, tensors

SHAPE, DEPTHS, QUICK_DEPTHS = Shape(128, 0), (8, 32, 128, 512), (4, 8)
QUICK_MODES = ("none", "block")
COMPILED = SHAPE.at(batch=1, length=64)
"""Steps next to which compilation is long."""
PAIRED_DEPTH = 32
"""Where modes are timed side by side."""
STATIC_BYTES = 16
LINEAR, CONSTANT = 0.2, 1.5
"""How far a figure may be from its line; how many times as long the deepest compiles as the shallowest."""
LAYER_MIB, LAYER_TIME = 4.0, 1.35
"""Activations a layer, and step time over that without, of `block`."""


def mode(kind: str) -> str:
    """The override that asks for a mode."""
    return f"train.activation_checkpointing={kind}"


def measure_size(depth: int, kind: str, rounds: int) -> dict[str, Any]:
    """Start-up, step, memory and checkpoint of one model in one mode."""
    held, began = process.resident(), time.process_time()
    model = Ours(SHAPE.at(depth=depth), (mode(kind),))
    started = time.process_time() - began
    # Depth itself evens out noise.
    seconds = interleave({kind: model.step}, 1 if depth >= DEPTHS[-1] else rounds)[kind]
    memory = process.peak() - held
    static = STATIC_BYTES * model.num_parameters / process.MIB
    found = {"depth": depth, "kind": kind, "startup": started, "step": spread(seconds).median}
    found |= {"memory": memory, "activations": memory - static}
    return found if kind != "none" else found | save(model)


def save(model: Ours) -> dict[str, float]:
    """Seconds and MiB of a checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        weights = tensors.of_module(model.model)
        states = optim.state_tensors(model.trainer.optimizer, model.model)
        path = checkpoint.save(Path(folder), 1, weights, states, {}, keep=1)
        seconds = time.perf_counter() - began
        size = sum(file.stat().st_size for file in path.iterdir()) / process.MIB
    return {"checkpoint": seconds, "checkpoint_mib": size}


def measure_compile(depth: int) -> float:
    """Wall seconds that the first step of a compiled model takes longer than a later one."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        model = Ours(COMPILED.at(depth=depth), ("train.compile=true",))
        times = [_wall(model) for _ in range(4)]
    # The second step's gradients come back to other graphs than the first's.
    return times[0] + times[1] - 2 * min(times[2:])


def _wall(model: Ours) -> float:
    began = time.perf_counter()
    model.step()
    return time.perf_counter() - began


def measure_paired(depth: int, rounds: int) -> dict[str, list[float]]:
    """Times of all modes, interleaved in one process."""
    models = {kind: Ours(SHAPE.at(depth=depth), (mode(kind),)) for kind in CHECKPOINTING.names()}
    return interleave({kind: model.step for kind, model in models.items()}, rounds)


def linear(name: str, rows: list[dict[str, Any]], key: str) -> Goal:
    """That a figure is linear in depth."""
    fitted = line([row["depth"] for row in rows], [row[key] for row in rows])
    return Goal(f"{name}: relative distance from a line in depth", "at most", LINEAR, fitted.deviation)


def activations_per_layer(rows: list[dict[str, Any]]) -> float:
    """MiB by which activations grow with every layer, from the shallowest model to the deepest."""
    first, *_, last = rows
    return (last["activations"] - first["activations"]) / (last["depth"] - first["depth"])


def fill_size(options: Options, report: Report) -> None:
    """Step, start-up, checkpoint and memory by depth."""
    depths = QUICK_DEPTHS if options.quick else DEPTHS
    rows = {
        kind: [isolated(measure_size, depth, kind, options.rounds) for depth in depths]
        for kind in (QUICK_MODES if options.quick else CHECKPOINTING.names())
    }
    plain = rows["none"]
    keys = {"startup": "start-up s", "step": "step s", "checkpoint": "checkpoint s", "checkpoint_mib": "MiB"}
    title = f"By depth, width {SHAPE.dim}, without activation checkpointing"
    cells: list[list[Cell]] = [[row["depth"], *(row[key] for key in keys)] for row in plain]
    report.tables.append(Table(title, ["layers", *keys.values()], cells, digits=3))
    cells = []
    for kind, found in rows.items():
        cells.append([kind, *(row["memory"] for row in found), activations_per_layer(found)])
    title = f"Peak memory by mode, MiB beyond the imports, width {SHAPE.dim}"
    columns = ["mode", *(f"{depth} layers" for depth in depths), "activations a layer"]
    report.tables.append(Table(title, columns, cells, digits=1))
    report.goals += [linear(name, plain, key) for key, name in keys.items() if key != "checkpoint_mib"]
    report.goals += [linear(f"peak memory, {kind}", found, "memory") for kind, found in rows.items()]
    block = activations_per_layer(rows["block"])
    report.goals.append(Goal("block: MiB of activations a layer", "at most", LAYER_MIB, block))
    report.measurements += [row for found in rows.values() for row in found]


def fill_compile(options: Options, report: Report) -> None:
    """Compilation by depth."""
    if options.quick:
        return
    seconds = {depth: isolated(measure_compile, depth) for depth in DEPTHS}
    rows: list[list[Cell]] = [[depth, found] for depth, found in seconds.items()]
    report.tables.append(Table("Compilation into an empty cache", ["layers", "wall s"], rows, digits=1))
    report.measurements.append({"compile": seconds})
    name = f"compilation: {DEPTHS[-1]} layers over {DEPTHS[0]}"
    report.goals.append(Goal(name, "at most", CONSTANT, seconds[DEPTHS[-1]] / seconds[DEPTHS[0]]))


def fill_checkpointing(options: Options, report: Report) -> None:
    """Time of every mode beside none."""
    depth = QUICK_DEPTHS[0] if options.quick else PAIRED_DEPTH
    times = isolated(measure_paired, depth, options.rounds)
    ratios = {kind: ratio(seconds, times["none"]) for kind, seconds in times.items()}
    rows: list[list[Cell]] = [[kind, ranged(found)] for kind, found in ratios.items()]
    title = f"Step time by mode, width {SHAPE.dim} x {depth} layers"
    report.tables.append(Table(title, ["mode", "times the step without"], rows))
    report.measurements.append({"paired": times, "depth": depth})
    report.goals.append(Goal("block: times the step without", "at most", LAYER_TIME, ratios["block"].median))


PARTS = {"size": fill_size, "compile": fill_compile, "checkpointing": fill_checkpointing}


def fill(options: Options, report: Report) -> None:
    """What is wanted of the three."""
    for name, part in PARTS.items():
        if options.wanted(name):
            part(options, report)


if __name__ == "__main__":
    main("depth_scaling", __doc__, tuple(PARTS), rounds=3, fill=fill)
