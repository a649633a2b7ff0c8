"""Experts beside transformers' own and beside matrix products of perfectly balanced experts.

    python -m benchmarks.moe [--quick] [--only 8 16 64] [--json PATH]

Forward and backward of one layer of 8, 16 and 64 SwiGLU experts, top 2, width 256, hidden width 344, 1024 and
4096 tokens (1024 with --quick), fp32 and bf16, the same random routing for everyone.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from benchmarks.bench import experts
from benchmarks.bench.cli import Options, main
from benchmarks.bench.equal import DifferentError
from benchmarks.bench.experts import Problem
from benchmarks.bench.isolate import isolated
from benchmarks.bench.report import Cell, Goal, Report, Table, ranged
from benchmarks.bench.shapes import PRECISIONS
from benchmarks.bench.timing import Times, interleave, ratio, spread

EXPERTS, TOKENS, BACKENDS = (8, 16, 64), (1024, 4096), ("grouped", "loop")
OURS, DEFAULT, EAGER, LIMIT = "depthkit, grouped", "transformers, default", "transformers, eager", "limit"
TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2}
GOALS = ((DEFAULT, EXPERTS, 1.0), (EAGER, (64,), 8.0))
"""Beside whom, with how many experts, how many times as fast."""


def measure(problem: Problem, rounds: int) -> dict[str, Any]:
    """Times of everyone, once all are found to compute the same.

    Raises:
        DifferentError: they do not.
    """
    drawn, notes = problem.draw(), []
    layers = {f"depthkit, {name}": experts.ours(drawn, name) for name in BACKENDS}
    try:
        layers[DEFAULT], chosen = experts.transformers(drawn, None)
        layers[EAGER], _ = experts.transformers(drawn, "eager")
        notes.append(f"transformers' default experts are {chosen}")
    except ImportError as error:
        notes.append(f"transformers is absent: {error}")
    for name, layer in layers.items():
        found = experts.difference(layer, layers[OURS])
        if not found <= TOLERANCE[problem.precision]:
            raise DifferentError(f"{name} computes something else: {found:.1e} from {OURS}, {problem}")
    steps = {name: layer.step for name, layer in layers.items()}
    times = interleave({**steps, LIMIT: experts.Balanced(problem).step}, rounds)
    return {"problem": asdict(problem), "seconds": times, "notes": notes}


def tabulate(problem: Problem, times: Times) -> Table:
    """A row for everyone."""
    rows: list[list[Cell]] = []
    for name, seconds in times.items():
        against = ranged(ratio(times[DEFAULT], seconds)) if DEFAULT in times else None
        rows.append([name, 1e3 * spread(seconds).median, against, ranged(ratio(times[LIMIT], seconds))])
    title = f"{problem.experts} experts, {problem.tokens} tokens, {problem.precision}"
    columns = ["", "ms forward and backward", f"times as fast as {DEFAULT}", "limit / time"]
    return Table(title, columns, rows, digits=1)


def goals(problem: Problem, times: Times) -> list[Goal]:
    """Ratios to transformers' implementations."""
    found = []
    for peer, counts, bound in GOALS:
        if problem.experts in counts:
            value = ratio(times[peer], times[OURS]).median if peer in times else None
            where = f"{problem.experts} experts, {problem.tokens} tokens, {problem.precision}"
            found.append(Goal(f"{where}: {OURS}, times as fast as {peer}", "at least", bound, value))
    return found


def measure_all(problems: list[Problem], rounds: int) -> list[dict[str, Any]]:
    """Several problems in one process."""
    return [measure(problem, rounds) for problem in problems]


def fill(options: Options, report: Report) -> None:
    """Measure every number of experts in a process of its own."""
    for count in EXPERTS:
        if not options.wanted(str(count)):
            continue
        tokens = TOKENS[:1] if options.quick else TOKENS
        problems = [Problem(count, n, precision) for n in tokens for precision in PRECISIONS]
        for problem, found in zip(problems, isolated(measure_all, problems, options.rounds), strict=True):
            report.tables.append(tabulate(problem, found["seconds"]))
            report.goals.extend(goals(problem, found["seconds"]))
            report.notes.extend(found.pop("notes"))
            report.measurements.append(found)


if __name__ == "__main__":
    main("moe", __doc__, tuple(map(str, EXPERTS)), rounds=7, fill=fill)
