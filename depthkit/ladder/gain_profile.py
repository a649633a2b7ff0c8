"""The gains of one model over depth at initialisation, as numbers and as a small picture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from depthkit.model import ModelConfig, Rule, Transformer
from depthkit.model.gains import BRANCHES
from depthkit.utilization.report.plots import COLOURS, save_png

NAMES = ("read", "write", "skip")
PSEUDO = ("embed", "final", "logits")


@dataclass(frozen=True)
class GainProfile:
    """What a model's regulators multiply by, in evaluation mode, before the first step."""

    curves: dict[str, dict[str, list[float]]]
    """Gain -> branch -> one value a visit (of a vector gain, the mean over features); absent ones are out."""
    outside: dict[str, float]
    """Pseudo-site -> its gain, where there is one."""
    rules: dict[str, tuple[Rule, Rule]]
    """Role -> multipliers in the first and the last layer, where they are not all 1."""

    def words(self) -> Iterator[str]:
        """A line for every gain and rule."""
        for name, branches in self.curves.items():
            yield f"{name}: {_same(branches)}"
        for name, value in self.outside.items():
            yield f"{name}: {value:.4g}"
        groups: dict[tuple[Rule, Rule], list[str]] = {}
        for role, pair in self.rules.items():
            groups.setdefault(pair, []).append(role)
        for (first, last), roles in groups.items():
            yield f"rule for {', '.join(roles)}: {_rule(first, last)}"


def gain_profile(config: ModelConfig) -> GainProfile:
    """Build the model and ask its schedules."""
    model = Transformer(config)
    with torch.no_grad():
        gains = model.schedules(model.plan)
    curves = {
        name: {branch: gain[:, i].mean(-1).tolist() for i, branch in enumerate(BRANCHES)}
        for name in NAMES
        if (gain := getattr(gains, name)) is not None
    }
    outside = {name: float(g.mean()) for name in PSEUDO if (g := getattr(gains, name)) is not None}
    return GainProfile(curves, outside, _rules(model))


def _rules(model: Transformer) -> dict[str, tuple[Rule, Rule]]:
    ends: dict[str, dict[int | None, Rule]] = {}
    for info in model.named_roles():
        ends.setdefault(info.role, {})[info.layer] = info.rule
    found = {}
    for role, by_layer in ends.items():
        first, *_, last = [*by_layer.values(), *by_layer.values()]
        if (first, last) != (Rule(), Rule()):
            found[role] = (first, last)
    return found


def _same(branches: dict[str, list[float]]) -> str:
    words = {
        branch: f"{v[0]:.4g} at the first visit, {v[-1]:.4g} at the last" for branch, v in branches.items()
    }
    words = {b: w if branches[b][0] != branches[b][-1] else f"{branches[b][0]:.4g}" for b, w in words.items()}
    if len(set(words.values())) == 1:
        return next(iter(words.values()))
    return "; ".join(f"{branch} {w}" for branch, w in words.items())


def _rule(first: Rule, last: Rule) -> str:
    parts = []
    for name, a, b in zip(("std", "lr", "Adam epsilon", "weight decay"), first, last, strict=True):
        if (a, b) != (1.0, 1.0):
            parts.append(
                f"{name} x {a:.4g}" + ("" if a == b else f" in the first layer, x {b:.4g} in the last")
            )
    return ", ".join(parts)


def save_profile(profile: GainProfile, title: str, path: Path) -> Path:
    """A small PNG of read, write and skip by visit, on a logarithmic scale unless a gain is 0."""
    figure = Figure(figsize=(4.2, 2.3), dpi=90, layout="constrained")
    axes = figure.add_subplot()
    for name, branches in profile.curves.items():
        together = branches[BRANCHES[0]] == branches[BRANCHES[1]]
        for branch, style in zip(BRANCHES[: 1 if together else 2], ("-", "--"), strict=False):
            values, label = branches[branch], name if together else f"{name}, {branch}"
            axes.plot(range(1, len(values) + 1), values, style, color=COLOURS[NAMES.index(name)], label=label)
    drawn = [
        value for branches in profile.curves.values() for values in branches.values() for value in values
    ]
    axes.set_yscale("log" if min(drawn) > 0 else "linear")
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("visit l", fontsize=8)
    axes.tick_params(labelsize=7, which="both")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=7)
    return save_png(figure, path)
