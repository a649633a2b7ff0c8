"""From a model and token windows to a report: the model itself, then what it is held against."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from depthkit.config import Component
from depthkit.utilization.accumulators import Ranks
from depthkit.utilization.measuring import Plan, measure
from depthkit.utilization.nulls import NULLS
from depthkit.utilization.options import ReplayOptions, probe_configs
from depthkit.utilization.paper import Paper
from depthkit.utilization.papers import PAPERS, PREFIX
from depthkit.utilization.replay import DEFAULTS
from depthkit.utilization.report.build import Against, Evaluated, build
from depthkit.utilization.report.report import Report
from depthkit.utilization.sequences import Sequences
from depthkit.utilization.subject import Subject
from depthkit.utilization.tasks.items import Items

Progress = Callable[[float, float], None]
NO_TASKS: Mapping[str, Items] = MappingProxyType({})
NULL_SEED = 2**32
"""Added to the seed for null models, so that one is never the model's own initialisation."""


def evaluate(
    model: Subject | nn.Module,
    sequences: Any,
    probes: Any = None,
    seed: int = 0,
    *,
    batch_tokens: int = 1024,
    null: Any = (),
    replay: ReplayOptions = DEFAULTS,
    tasks: Mapping[str, Items] = NO_TASKS,
    ranks: Ranks | None = None,
    info: Mapping[str, Any] | None = None,
    progress: Progress = lambda done, total: None,
) -> Report:
    """Measure what each visit of a layer contributes.

    Args:
        model: a `Subject`, or a module that one can be made of. It is left as it was.
        sequences: token ids `[N, T+1]`, `(ids, targets, mask)`, or `Sequences`.
        probes: a preset's name, a list of probe names or `{kind: ...}` configs; None is "quick".
        seed: bootstrap resamples, subsamples and null models.
        batch_tokens: tokens per micro-batch; the results do not depend on it beyond rounding.
        null: null models to measure in the same way, by name or config; each costs as much as the model.
        replay: whether altered models are stacked, and where recorded states are kept.
        tasks: multiple-choice items by task, for the probe `task_drop`.
        ranks: processes that share the sequences, as `training.parallel.launch.joined` gives them; all
            of them call this with the same arguments, and the first one's report is the one to keep.
        info: facts about the model for the report, such as its path and step.
        progress: called with (layer evaluations done, in all).

    Out of memory, it starts again with half the `batch_tokens`, and warns.

    Raises:
        ValueError: unusable sequences, unknown probes, a model that cannot be replayed or has no such null,
            fewer sequences than processes, or a probe that several processes cannot share.
        CanaryError: a check of the measuring failed.
    """
    subject = model if isinstance(model, Subject) else Subject(model)
    data = Sequences.of(sequences)
    several = ranks if ranks is not None and ranks.size > 1 else None
    plan = Plan(probe_configs(probes), _paper(probes), seed, batch_tokens, replay, tasks, several)
    configs: list[Any] = [
        Component(NULLS).validate(each) for each in ([null] if isinstance(null, str) else null)
    ]
    _check(subject, data)
    share = _Shares(progress, 1 + len(configs))
    found = measure(subject, data, plan, share.of(0))
    against = [
        _against(config, subject, data, plan, share.of(place)) for place, config in enumerate(configs, 1)
    ]
    return build(
        Evaluated(found, dict(info or {}), _environment(subject), data.describe() | {"seed": seed}, against)
    )


def _against(config: Any, subject: Subject, data: Sequences, plan: Plan, progress: Progress) -> Against:
    null = config.component(config)
    if any(parameter.is_meta for parameter in subject.model.parameters()):
        raise ValueError(f"null={config.kind}: needs a second model in memory, and {subject.name} is on disk")
    found = measure(null.of(subject, plan.seed + NULL_SEED), data, plan, progress)
    return Against(config.kind, null.words, plan.seed + NULL_SEED, found)


def _paper(probes: Any) -> Paper | None:
    """The paper whose preset it is."""
    if not isinstance(probes, str) or not probes.startswith(PREFIX):
        return None
    config = PAPERS.get(probes.removeprefix(PREFIX)).Config()
    return config.component(config)


class _Shares:
    """Progress of several measurements, each of which is taken to cost what the first one does."""

    def __init__(self, progress: Progress, count: int):
        self._progress, self._count = progress, count

    def of(self, place: int) -> Progress:
        """The progress of one of them."""
        return lambda done, total: self._progress(place * total + done, self._count * total)


def _environment(subject: Subject) -> dict[str, Any]:
    others = {name: version(name) for name in ("transformers",) if name in sys.modules}
    return others | {
        "depthkit": version("depthkit"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": str(subject.device),
        "threads": torch.get_num_threads(),
    }


def _check(subject: Subject, data: Sequences) -> None:
    if data.num_scored == 0:
        raise ValueError("sequences: no token to score (all targets are -100 or padding)")
    size = subject.num_ids
    low, high = int(data.ids.min()), int(data.ids.max())
    if low < 0 or (size is not None and high >= size):
        raise ValueError(f"sequences: token ids run from {low} to {high}, the model knows {size}, from 0")
