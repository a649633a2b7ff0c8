"""What rungs must have in common before they are compared, and how they are given it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from depthkit import config as configs
from depthkit.config import Component, ConfigError
from depthkit.ladder.axes import DEPTH, Step
from depthkit.ladder.budgets import Named
from depthkit.ladder.cost import Vocabularies
from depthkit.ladder.registries import BUDGETS, RATES, SIZES
from depthkit.registry import Spec
from depthkit.training.run import RunConfig
from depthkit.utilization.options import EvalOptions


class FairnessConfig(Spec):
    """The rules that make rungs comparable; a ladder whose rungs are not is refused."""

    budget: Annotated[Any, Component(BUDGETS)] = Field("tokens", validate_default=True)
    """How long rungs train: equal `tokens` (refused if not), equal `flops` (steps are adjusted), `free`."""
    size: Annotated[Any, Component(SIZES)] = Field("free", validate_default=True)
    """How wide rungs are: `free`, or equal `parameters` (the width shrinks with depth)."""
    learning_rate: Annotated[Any, Component(RATES)] = Field("fixed", validate_default=True)
    """`fixed`; `swept` over values for every method and depth, of which the best counts; `transferred`."""
    within: list[str] = []
    """Axes along which rungs may differ in what the rules ask for, such as an axis over train.steps: only
    rungs with equal values there are compared."""
    same_data: bool = True
    """Whether all rungs must train on one corpus, read by one tokenizer."""

    def fit(self, run: RunConfig, reference: RunConfig) -> RunConfig:
        """The run at the width and length that the rules give it."""
        return self.budget.fit(self.size.fit(run, reference), reference)

    @property
    def needs_reference(self) -> bool:
        """Whether a rung depends on the base run's cost, for which the vocabulary must be known."""
        return self.budget.kind == "flops" or self.size.kind == "parameters"


class Fitter:
    """Turns raw rungs into runs under the rules of a ladder.

    Args:
        fairness: the rules.
        base: the raw base run. What is equalised is equal to it: to its model under a rung's own settings
            of everything else (training, data), so that an axis over `train.steps` moves the budget too.
    """

    def __init__(self, fairness: FairnessConfig, base: Mapping[str, Any]):
        self.fairness, self.base = fairness, dict(base)
        self.vocabularies = Vocabularies()
        self._references: dict[str, RunConfig] = {}

    def run(self, raw: Any, combination: Mapping[str, Step], name: str) -> RunConfig:
        """The validated run of one rung.

        Raises:
            ConfigError: it cannot be built; the message names the rung.
        """
        run = configs.parse(self.fairness.learning_rate.treat(raw), origin=f"rung {name}")
        if not self.fairness.needs_reference:
            return run
        try:
            return self.fairness.fit(self.vocabularies.fill(run), self._reference(combination))
        except ConfigError as error:
            raise ConfigError(f"rung {name}: {error}") from None

    def _reference(self, combination: Mapping[str, Step]) -> RunConfig:
        raw: Any = self.base
        for step in combination.values():
            for key, value in step.settings.items():
                if key != DEPTH and key.split(".")[0] != "model":
                    raw = configs.set_value(raw, key, value)
        found = json.dumps(raw, sort_keys=True)
        if found not in self._references:
            run = configs.parse(raw, origin="the base run")
            self._references[found] = self.vocabularies.fill(run)
        return self._references[found]


def check_comparable(
    fairness: FairnessConfig,
    named: Named,
    places: list[dict[str, Any]],
    fill: Vocabularies,
    evaluate: EvalOptions,
) -> None:
    """Refuse rungs that are compared although they are not alike in what the rules ask for.

    Raises:
        ConfigError: what differs, in which rungs, and how to allow it.
    """
    groups: dict[str, list[tuple[str, RunConfig]]] = {}
    for (name, run), place in zip(named, places, strict=True):
        groups.setdefault(json.dumps([place[axis] for axis in fairness.within]), []).append((name, run))
    for group in groups.values():
        full = [(n, fill.fill(run)) for n, run in group] if fairness.needs_reference else group
        for rule, setting in ((fairness.size, "size"), (fairness.budget, "budget")):
            for sentence in rule.complaints(full):
                raise ConfigError(
                    f"rungs are not comparable: {sentence}. Allow it with fairness.{setting}: free, or name "
                    "the axis they differ on in fairness.within"
                )
        _check_data(fairness, group)
        _check_windows(group, evaluate)


def _check_data(fairness: FairnessConfig, named: Named) -> None:
    seen: dict[str, str] = {}
    for name, run in named:
        seen.setdefault(
            json.dumps([configs.to_dict(run.data.corpus), configs.to_dict(run.data.tokenizer)]), name
        )
    if fairness.same_data and len(seen) > 1:
        first, second = list(seen.values())[:2]
        raise ConfigError(
            f"rungs are not comparable: {first} and {second} train on different text or read it with "
            "different tokenizers. Allow it with fairness.same_data: false, or name the axis they differ on "
            "in fairness.within"
        )


def _check_windows(named: Named, evaluate: EvalOptions) -> None:
    """The loss of a longer window is lower, so one length must do for all."""
    lengths = {evaluate.length(run.data.sequence_length): name for name, run in named}
    if len(lengths) > 1:
        listed = ", ".join(f"{length} in {name}" for length, name in sorted(lengths.items()))
        raise ConfigError(
            f"rungs are not comparable: evaluated on windows of unlike length ({listed}). Set "
            f"evaluate.sequence_length, such as {min(lengths)}, or name the axis they differ on in "
            "fairness.within"
        )
