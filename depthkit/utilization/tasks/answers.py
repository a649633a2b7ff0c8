"""What tasks said of a model: a part of its report, and the items that probes ask again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from depthkit.utilization.report.report import Report
from depthkit.utilization.tasks.items import Items


@dataclass(frozen=True)
class Answers:
    """Results of tasks.

    Attributes:
        content: what stands under `tasks` in `report.json`: lm_eval (its version), adapter, bos, limit,
            results (by task: metric, accuracy, stderr, n, chance, version, num_fewshot, metrics, and with
            visits skipped also `skipped`), skip, unavailable (task: reason). None where no task was asked.
        items: multiple-choice items by task.
    """

    content: dict[str, Any] | None = None
    items: Mapping[str, Items] = field(default_factory=dict)

    def join(self, report: Report) -> None:
        """Put them into a report."""
        if self.content is not None:
            report.content["tasks"] = self.content
