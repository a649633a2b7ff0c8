"""Where a run's measurements go: metrics.jsonl first, then TensorBoard."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from depthkit.training import heatmap, metrics
from depthkit.training.evaluation import Evaluation
from depthkit.training.expert_telemetry import ExpertTelemetry
from depthkit.training.folder import RunFolder
from depthkit.training.telemetry import PER_LAYER, PER_VISIT
from depthkit.training.tensorboard import EventFile

CURVES = 9
"""Visits (or layers) of which TensorBoard gets a curve, evenly spaced; the pictures show all of them."""


class Recorder:
    """Appends rows to a run folder, starting after `step`: later rows are set aside first.

    Raises:
        OSError: a write failed, here and in every method; no file holds half a row. The message says what
            is safe and how to go on.
    """

    def __init__(self, folder: RunFolder, step: int):
        self.folder = folder
        self.log = metrics.MetricsLog(folder.metrics)
        with folder.writing("metrics.jsonl"):
            self.log.rewind(step)
            self._history = metrics.read(folder.metrics, "telemetry")
        with folder.writing("the TensorBoard file"):
            self._board = EventFile(folder.tensorboard, step)

    def event(self, event: str, step: int, **values: Any) -> metrics.Row:
        """Append one row of any kind."""
        with self.folder.writing("metrics.jsonl"):
            return self.log.append(event, step, **values)

    def train(self, step: int, **values: float | None) -> metrics.Row:
        """Append a row of training metrics, and their points in TensorBoard."""
        row = self.event("train", step, **values)
        self._scalars({f"train/{name}": row[name] for name in values}, step)
        return row

    def validation(self, step: int, result: Evaluation) -> None:
        """Append a row of held-out losses and accuracies, and their points in TensorBoard."""
        self.event("validation", step, **asdict(result))
        points = {"validation/loss": result.val_loss, "validation/bits_per_byte": result.bits_per_byte}
        accuracy = result.accuracy_by_hops or {}
        points |= {f"validation/accuracy/{int(hops):02d}_hops": share for hops, share in accuracy.items()}
        self._scalars(points, step)

    def telemetry(self, step: int, values: dict[str, list[float | None]]) -> None:
        """Append a row of lists over depth, and curves of some visits in TensorBoard."""
        self._history.append(self.event("telemetry", step, **values))
        points = {
            f"{name}/{index:03d}": row[index] for name, row in values.items() for index in _spread(len(row))
        }
        self._scalars(points, step)

    def experts(self, step: int, found: ExpertTelemetry | None) -> None:
        """Append a row of expert loads and overlaps by visit, their curves, and a picture of the loads."""
        if found is None:
            return
        by_visit = {
            name: {str(key): value for key, value in getattr(found, name).items()}
            for name in ("load", "entropy", "overlap", "chance")
        }
        self.event("experts", step, **by_visit)
        loads = list(found.load.values())
        largest = {key: max(load) * len(load) for key, load in by_visit["load"].items()}
        curves = {"max load x E": largest, "entropy": by_visit["entropy"], "overlap": by_visit["overlap"]}
        points: dict[str, float | None] = {}
        for name, values in curves.items():
            keys = list(values)
            points |= {f"experts/{name}/{keys[i]}": values[keys[i]] for i in _spread(len(keys))}
        # Next to the overlaps, so that TensorBoard shows the line that independent choices would give.
        points |= {f"experts/overlap/chance {value:.3g}": value for value in set(found.chance.values())}
        self._scalars(points, step)
        if len({len(load) for load in loads}) == 1:
            with self.folder.writing("the TensorBoard file"):
                picture = heatmap.draw(list(zip(*loads, strict=True)))
                self._board.image("experts/load, visit (up) x expert", picture, step)

    def pictures(self, step: int) -> None:
        """Draw depth x step pictures of all telemetry so far in TensorBoard."""
        if not self._history:
            return
        with self.folder.writing("the TensorBoard file"):
            for name in (*PER_VISIT, *PER_LAYER):
                picture = heatmap.draw([row[name] for row in self._history])
                self._board.image(f"depth x step/{name}", picture, step)

    def close(self) -> None:
        """Close the files."""
        self.log.close()
        self._board.close()

    def _scalars(self, points: dict[str, float | None], step: int) -> None:
        with self.folder.writing("the TensorBoard file"):
            self._board.scalars(points, step)


def _spread(count: int) -> list[int]:
    """Up to `CURVES` indices below `count`, evenly spaced, first and last included."""
    if count <= CURVES:
        return list(range(count))
    return [round(i * (count - 1) / (CURVES - 1)) for i in range(CURVES)]
