"""What stands where the first rank has files: nothing is written."""

from __future__ import annotations

from typing import Any

from depthkit.training.evaluation import Evaluation
from depthkit.training.expert_telemetry import ExpertTelemetry
from depthkit.training.folder import RunFolder
from depthkit.training.metrics import Row


class QuietRecorder:
    """A `Recorder` of the ranks that write nothing."""

    def __init__(self, folder: RunFolder):
        self.folder = folder

    def event(self, event: str, step: int, **values: Any) -> Row:
        """The row that the first rank writes."""
        return {"event": event, "step": step, **values}

    def train(self, step: int, **values: float | None) -> Row:
        """See `event`."""
        return self.event("train", step, **values)

    def validation(self, step: int, result: Evaluation) -> None:
        """Nothing."""

    def telemetry(self, step: int, values: dict[str, list[float | None]]) -> None:
        """Nothing."""

    def experts(self, step: int, found: ExpertTelemetry | None) -> None:
        """Nothing."""

    def pictures(self, step: int) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""
