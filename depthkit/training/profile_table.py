"""From a profiler's events to time by place: every event's own time goes to the site whose work it is.

Forward events lie under a label. A backward function carries the number of the forward operator it belongs
to. What runs under a label inside the backward pass is activation checkpointing computing again.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Console
from rich.table import Table
from torch.autograd import DeviceType

from depthkit.training.profile_labels import STEP, Place, place_of

BACKWARD = "autograd::engine::evaluate_function: "
PHASES = FORWARD, BACK, AGAIN = ("forward", "backward", "recomputed")
REST, GRADIENTS = Place(STEP), Place("gradients")
"""What has no site, and the adding up of parameters' gradients, which autograd does outside of all sites."""

Row = dict[str, Any]


def by_place(events: Iterable[Any], steps: int) -> list[Row]:
    """Milliseconds a step by place, in the order in which places are first met.

    Args:
        events: of one profile, `torch.autograd.profiler_util.FunctionEvent`s.
        steps: how many steps they are of.

    Returns:
        Rows with `site`, `branch`, a number for each of `PHASES`, and `device`: the device's time, by the
        operator that launched it, 0 on CPUs.
    """
    on_cpu = [event for event in events if event.device_type == DeviceType.CPU]
    found: dict[int, tuple[Place, str]] = {}
    numbered: dict[int, Place] = {}
    rows: dict[Place, Row] = {}
    for event in sorted(on_cpu, key=lambda event: (event.time_range.start, -event.time_range.end)):
        parent = found.get(id(event.cpu_parent), (REST, FORWARD))
        place, phase = found[id(event)] = _resolve(event, parent, numbered)
        if phase == FORWARD and event.sequence_nr >= 0:
            numbered[event.sequence_nr] = place
        row = rows.setdefault(place, _empty(place))
        row[phase] += event.self_cpu_time_total / 1e3 / steps
        row["device"] += event.self_device_time_total / 1e3 / steps
    return list(rows.values())


def _resolve(event: Any, parent: tuple[Place, str], numbered: dict[int, Place]) -> tuple[Place, str]:
    place = place_of(event.name)
    if place is not None:
        return place, FORWARD if parent[1] == FORWARD else AGAIN
    if not event.name.startswith(BACKWARD):
        return parent
    if event.name.endswith("AccumulateGrad"):
        return GRADIENTS, BACK
    return numbered.get(event.sequence_nr, REST), BACK


def _empty(place: Place) -> Row:
    return {"site": place.site, "branch": place.branch, **dict.fromkeys((*PHASES, "device"), 0.0)}


def added_up(rows: list[Row]) -> list[Row]:
    """One row a branch, over all visits, and one for each site outside of them."""
    sums: dict[str, Row] = {}
    for row in rows:
        name = row["branch"] or row["site"]
        together = sums.setdefault(name, _empty(Place(name)))
        for key in (*PHASES, "device"):
            together[key] += row[key]
    return sorted(sums.values(), key=_total, reverse=True)


def _total(row: Row) -> float:
    return sum(row[phase] for phase in PHASES)


def text(rows: list[Row], steps: int) -> str:
    """Both tables for reading."""
    whole = sum(map(_total, rows))
    out = Console(file=io.StringIO(), width=120, highlight=False)
    out.print(f"{whole:.1f} ms a step, over {steps} steps; operators' own time, ms a step\n")
    sums = added_up(rows)
    out.print(_table(sums, ("all visits",), lambda row: [row["site"]], whole))
    out.print()
    out.print(_table(rows, ("site", "branch"), lambda row: [row["site"], row["branch"]], whole))
    assert isinstance(out.file, io.StringIO)
    lines = [line.rstrip() for line in out.file.getvalue().splitlines()]
    return "\n".join(lines) + "\n"


def _table(rows: list[Row], names: tuple[str, ...], cells: Callable[[Row], list[str]], whole: float) -> Table:
    phases = [phase for phase in (*PHASES, "device") if any(row[phase] for row in rows)]
    table = Table(*names, box=None)
    for column in (*phases, "total", "share"):
        table.add_column(column, justify="right")
    for row in rows:
        numbers = [f"{row[phase]:.3f}" for phase in phases]
        table.add_row(*cells(row), *numbers, f"{_total(row):.3f}", f"{_total(row) / whole:.1%}")
    return table
