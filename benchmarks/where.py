"""Where a training step's time goes, depthkit's compiled beside that of eager transformers.

    python -m benchmarks.where [--quick] [--only dim64 dim128 dim256 tiny] [--json PATH]

Linux's `perf` samples the process while it takes steps. What the processor was in is sorted by library and
function: matrix products (attention's too), kernels that the compiler made, other kernels, the optimiser,
the interpreter, memory management, and dispatch, which is the rest of torch. Widths are those of
`train_step`, depths a quarter of its. Without `perf`, or where the system keeps it from watching processes
(`kernel.perf_event_paranoid`), there are no tables.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import overhead
from benchmarks.bench.candidate import Candidate
from benchmarks.bench.cli import Options, main
from benchmarks.bench.contenders import BASE
from benchmarks.bench.isolate import isolated
from benchmarks.bench.ours import VARIANTS, Ours
from benchmarks.bench.peers import PEERS
from benchmarks.bench.report import Cell, Report, Table
from benchmarks.bench.shapes import PRECISIONS, QUICK, SHAPES, Shape

OURS = "depthkit, compiled"
TINY = "tiny"
"""The steps of 8 tokens that `overhead` measures."""
SHALLOWER, WARM_UP, HERTZ = 4, 3, 1999
REFERENCE = SHAPES["dim64"]
"""Shorter steps are sampled more often than once for each round asked for."""
KINDS = {
    "matrix products": r"mkl_blas|gemm|dnnl.*execute|\[JIT\]|cpu_flash_attention",
    "exponentials": r"Sleef|_kernel_sExp",
    "compiled kernels": r"\.main\.so|torchinductor",
    "optimiser": r"fused_adam",
    "other kernels": r"at::native|vectorized|callback_fn|memcpy|memset|memmove",
    "interpreter": r"libpython|libtorch_python|_multiarray|/python",
    "memory management": r"malloc|_int_free|cfree|memalign|unlink_chunk|\[k\]|ld-linux",
    "dispatch": r"libtorch|libc10|libstdc|libc\.so|libgomp|vdso",
}
"""What a line of the report, `library|function`, is counted as: the first pattern that is found in it."""


def measure(shape: Shape, steps: int) -> dict[str, dict[str, float]]:
    """Milliseconds a step by kind, of depthkit compiled and of eager transformers."""
    ours = Ours(shape, VARIANTS[OURS])
    found = {OURS: sampled(ours, steps)}
    with contextlib.suppress(ImportError):
        found[BASE] = sampled(PEERS.get(BASE)(shape, ours.state), steps)
    return found


def sampled(candidate: Candidate, steps: int) -> dict[str, float]:
    """Milliseconds a step by kind, and `step`, all of it.

    Raises:
        FileNotFoundError: there is no `perf`.
        PermissionError: it may not watch this process.
    """
    for _ in range(WARM_UP):
        candidate.step()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "samples"
        record = ["perf", "record", "-F", str(HERTZ), "-o", str(data), "-p", str(os.getpid())]
        with subprocess.Popen(record, stderr=subprocess.PIPE, text=True) as watcher:
            time.sleep(1)
            if watcher.poll() is not None:
                raise PermissionError(f"perf does not record: {watcher.communicate()[1].strip()}")
            began = time.process_time()
            for _ in range(steps):
                candidate.step()
            spent = time.process_time() - began
            watcher.send_signal(signal.SIGINT)
            watcher.communicate()  # it says how it went before it has written all
        report = ["perf", "report", "-i", str(data), "-t", "|", "--sort", "dso,symbol"]
        lines = subprocess.run(report, check=True, capture_output=True, text=True).stdout.splitlines()
    shares = sort(lines)
    each = 1e3 * spent / steps
    return {"step": each, **{kind: each * share for kind, share in shares.items()}}


def sort(lines: list[str]) -> dict[str, float]:
    """The share of every kind in lines `percent|library|function`, and `unnamed`, what is none of them."""
    shares = dict.fromkeys([*KINDS, "unnamed"], 0.0)
    for line in lines:
        percent, _, place = (part.strip() for part in line.partition("|"))
        if not re.fullmatch(r"[\d.]+%?", percent):
            continue
        kind = next((kind for kind, pattern in KINDS.items() if re.search(pattern, place)), "unnamed")
        shares[kind] += float(percent.rstrip("%")) / 100
    whole = sum(shares.values())
    return {kind: share / whole for kind, share in shares.items()}


def tabulate(shape: Shape, found: dict[str, dict[str, float]]) -> Table:
    """A row for every kind: milliseconds and percent of each candidate's step."""
    columns = ["", *(f"{name}, {what}" for name in found for what in ("ms", "%"))]
    rows: list[list[Cell]] = []
    for kind in next(iter(found.values())):
        cells = ((times[kind], 100 * times[kind] / times["step"]) for times in found.values())
        rows.append([kind, *(value for pair in cells for value in pair)])
    return Table(
        f"Where the time goes, {shape.label} layers, {shape.tokens} tokens, {shape.precision}",
        columns,
        rows,
        digits=1,
    )


def shapes(quick: bool) -> dict[str, Shape]:
    """What is measured, by name."""
    scale = QUICK if quick else SHALLOWER
    deep = {name: shape.at(depth=shape.depth // scale) for name, shape in SHAPES.items()}
    return {**deep, TINY: overhead.TINY}


def fill(options: Options, report: Report) -> None:
    """Every shape and precision in a process of its own."""
    for name, one in shapes(options.quick).items():
        if not options.wanted(name):
            continue
        steps = options.rounds * round((REFERENCE.tokens / one.tokens) ** 0.5)
        for precision in PRECISIONS:
            shape = one.at(precision=precision)
            try:
                found: dict[str, Any] = isolated(measure, shape, steps)
            except (FileNotFoundError, PermissionError) as error:
                report.notes.append(f"nothing is measured without perf: {error}")
                return
            report.tables.append(tabulate(shape, found))
            report.measurements.append({"shape": asdict(shape), "milliseconds": found})


if __name__ == "__main__":
    main("where", __doc__, (*SHAPES, TINY), rounds=20, fill=fill)
