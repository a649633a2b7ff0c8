"""What every parameter is for, so that initialisation, optimiser and regulators need not look at names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

MATRICES = frozenset({"q", "k", "v", "o", "gate", "up", "down", "router", "adapter", "head"})
"""Roles that are initialised with the configured init and take weight decay; `embed` has a std of its own."""

OUTPUTS = frozenset({"o", "down"})
"""Roles whose product is written to the residual stream."""

ROLES = MATRICES | {"norm", "bias", "embed", "schedule"}


class Rule(NamedTuple):
    """Multipliers a regulator puts on a parameter: initial value, learning rate, Adam epsilon, weight decay.

    Where the initial value is drawn, `init` multiplies its standard deviation.
    """

    init: float = 1.0
    lr: float = 1.0
    eps: float = 1.0
    weight_decay: float = 1.0

    def times(self, other: Rule) -> Rule:
        """Both rules together."""
        return Rule(*(a * b for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True)
class RoleInfo:
    """One parameter with its place: `layer` (stored, from 0) and `branch` are None outside the blocks."""

    name: str
    parameter: nn.Parameter
    layer: int | None
    branch: str | None
    role: str
    rule: Rule


def assign(module: nn.Module, **roles: str) -> None:
    """Record on `module` the role of its own parameters, by attribute path: `assign(self, q="q.weight")`.

    The keyword is the role; several parameters of one role are joined with a comma.
    """
    table = {path: role for role, paths in roles.items() for path in paths.split(",")}
    unknown = set(table.values()) - ROLES
    assert not unknown, f"unknown roles {unknown}"
    module.parameter_roles = table  # type: ignore[assignment]


def assign_rules(module: nn.Module, **rules: Rule) -> None:
    """Record on `module` a rule for its own parameters, by attribute name."""
    module.parameter_rules = rules  # type: ignore[assignment]


def rule_table(model: nn.Module) -> dict[str, Rule]:
    """Parameter name -> rule, from what modules recorded with `assign_rules`."""
    table: dict[str, Rule] = {}
    for prefix, module in model.named_modules():
        for path, rule in getattr(module, "parameter_rules", {}).items():
            table[f"{prefix}.{path}" if prefix else path] = rule
    return table


def role_table(model: nn.Module) -> dict[str, str]:
    """Parameter name -> role, from what modules recorded with `assign`.

    Raises:
        AssertionError: a parameter without a role (a bug in a component).
    """
    table: dict[str, str] = {}
    for prefix, module in model.named_modules():
        for path, role in getattr(module, "parameter_roles", {}).items():
            table[f"{prefix}.{path}" if prefix else path] = role
    missing = [name for name, _ in model.named_parameters(remove_duplicate=False) if name not in table]
    assert not missing, f"parameters without a role: {missing}"
    return table
