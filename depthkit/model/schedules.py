"""The one owner of everything that differs by visit: gains and parameter rules of all regulators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from depthkit.model.ffns.router import RouterBank
from depthkit.model.gains import BRANCHES, Gains, compose
from depthkit.model.plan import Key, Plan
from depthkit.model.regulators.base import Regulator
from depthkit.model.roles import Rule

SEPARATOR = "/"
"""Between block and branch in the name of a bank; a module's name may not hold a dot."""


class Bank(NamedTuple):
    """Parameters of one visit: a pair (mixer, ffn) for the stream, and one for the branches."""

    stream: tuple[Any, Any] = (None, None)
    branch: tuple[Any, Any] = (None, None)


class Schedules(nn.Module):
    """Runs once per forward, vectorised over depth, and returns the gains of every visit.

    Args:
        regulators: `(regulator, segments)` pairs; a regulator acts at visits of the named segments only, and
            is asked for the gains of those.
        everywhere: how many of the first pairs also act outside the blocks (embedding, final norm, head).
        stream_bank: what the stream keeps for every visit, or None; see `SingleStream`.
        branch_banks: what branches keep for every visit, by `block.branch`; see `depthkit.model.ffns.moe`.
    """

    def __init__(
        self,
        regulators: Sequence[tuple[Regulator, frozenset[str]]],
        everywhere: int,
        stream_bank: nn.Module | None = None,
        branch_banks: Mapping[tuple[str, str], nn.Module] | None = None,
    ):
        super().__init__()
        self.stream_bank = stream_bank
        self.branch_banks = nn.ModuleDict(
            {SEPARATOR.join(place): bank for place, bank in (branch_banks or {}).items()}
        )
        self.regulators = nn.ModuleList(regulator for regulator, _ in regulators)
        self.segments = [segments for _, segments in regulators]
        self.everywhere = everywhere

    def forward(
        self,
        plan: Plan,
        step: Tensor | None = None,
        training: bool = False,
        device: torch.device | None = None,
    ) -> Gains:
        """The product of all regulators' gains over `plan`, fp32, on `device`."""
        parts = [
            self._inside(regulator, segments, plan, step, training)
            for regulator, segments in zip(self.regulators, self.segments, strict=True)
        ]
        local = [part.inside_blocks() for part in parts[self.everywhere :]]
        return compose(_on(part, device) for part in parts[: self.everywhere] + local)

    def banks(self, plan: Plan) -> list[Bank]:
        """What differs by visit and is no gain, for every visit of `plan`."""
        streams = [(None, None)] * plan.depth if self.stream_bank is None else self.stream_bank(plan)
        branches: list[dict[str, Any]] = [{} for _ in plan.visits]
        for place, bank in self.branch_banks.items():
            block, branch = place.split(SEPARATOR)
            rows = [visit.index for visit in plan.visits if visit.block == block]
            for row, entry in zip(rows, bank(plan.of_block(block)), strict=True):
                branches[row][branch] = entry
        pairs = [(entries.get(BRANCHES[0]), entries.get(BRANCHES[1])) for entries in branches]
        return [Bank(stream, pair) for stream, pair in zip(streams, pairs, strict=True)]

    def after_step(self, loads: Mapping[Key, Tensor]) -> None:
        """Pass the expert loads `[E]` of an optimiser step, by visit, on to banks that balance by them."""
        for bank in self.branch_banks.values():
            assert isinstance(bank, RouterBank)
            bank.after_step(loads)

    def readout(self) -> Any:
        """What the stream needs to `close`, or None."""
        return None if self.stream_bank is None else self.stream_bank.readout()  # type: ignore[operator]

    @staticmethod
    def _inside(
        regulator: nn.Module, segments: frozenset[str], plan: Plan, step: Tensor | None, training: bool
    ) -> Gains:
        assert isinstance(regulator, Regulator)
        gains = regulator.gains(plan.part(segments), step, training)
        mask = [visit.key.segment in segments for visit in plan.visits]
        return gains if all(mask) else gains.within(torch.tensor(mask))

    def rule(self, plan: Plan, layer: int | None, branch: str | None, role: str) -> Rule:
        """The product of all regulators' rules for one parameter."""
        rule = Rule()
        segment = None if layer is None else plan.layer_segments[layer]
        for position, (regulator, segments) in enumerate(zip(self.regulators, self.segments, strict=True)):
            assert isinstance(regulator, Regulator)
            if segment in segments or (segment is None and position < self.everywhere):
                rule = rule.times(regulator.rule(plan, layer, branch, role))
        return rule

    def norm_start(self, plan: Plan, layer: int, branch: str) -> float:
        """What the gain of the norm before a branch starts at: the product over regulators."""
        start = 1.0
        for regulator, segments in zip(self.regulators, self.segments, strict=True):
            assert isinstance(regulator, Regulator)
            if plan.layer_segments[layer] in segments:
                start *= regulator.norm_start(plan, layer, branch)
        return start


def _on(gains: Gains, device: torch.device | None) -> Gains:
    if device is None:
        return gains
    values = {field.name: getattr(gains, field.name) for field in fields(Gains)}
    return Gains(**{name: None if g is None else g.to(device) for name, g in values.items()})
