"""What the routers of one training step did: load, entropy, and whether loops choose the same experts.

Shapes: B batch, T time, E experts, k experts a token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from depthkit.model import Key, Output
from depthkit.model.ffns.router import selection_overlap
from depthkit.training.parallel.ranks import ALONE, Ranks


@dataclass(frozen=True)
class ExpertTelemetry:
    """Measurements of one micro-batch, by visit."""

    load: dict[Key, list[float]]
    """Share of the choices that each expert got, `[E]`; sums to 1."""
    entropy: dict[Key, float]
    """Mean entropy of the router's shares, nats; ln E when undecided."""
    overlap: dict[Key, float]
    """Share of a token's k experts that the loop before had chosen too, from the second loop on."""
    chance: dict[Key, float]
    """What that overlap is for independent choices: k / E."""

    @classmethod
    def of(cls, output: Output, counted: Tensor, ranks: Ranks = ALONE) -> ExpertTelemetry | None:
        """From a forward; `counted [B, T]` says which tokens count. None where there are no experts.

        With several ranks, each with its slice of the sequences, of all of them together.

        An overlap of 1 at every loop is selection collapse: looping then repeats one dense computation.
        """
        routed = {v.key: aux for v, aux in zip(output.visits, output.aux, strict=True) if "experts" in aux}
        if not routed:
            return None
        load, entropy, overlap, chance = {}, {}, {}, {}
        number = counted.sum().double()
        for key, aux in routed.items():
            before = routed.get(key._replace(loop=key.loop - 1))
            mean = None if before is None else _overlap(before["experts"], aux["experts"], counted)
            means = [aux["entropy"].detach(), mean if mean is not None else number]
            shares, averages = _together(aux["load"].detach().double(), means, number, ranks)
            load[key] = (shares / shares.sum().clamp(min=1)).tolist()
            entropy[key] = float(averages[0])
            if before is not None:
                overlap[key] = float(averages[1])
                chance[key] = aux["experts"].shape[-1] / len(shares)
        return cls(load, entropy, overlap, chance)


def _overlap(before: Tensor, experts: Tensor, counted: Tensor) -> Tensor:
    return selection_overlap(before, experts)[counted].mean()


def _together(load: Tensor, means: list[Tensor], count: Tensor, ranks: Ranks) -> tuple[Tensor, list[Tensor]]:
    """Loads and means over `count` tokens, of all ranks together."""
    if ranks.size == 1:
        return load, means
    parts = torch.stack([mean.double() * count if count > 0 else count for mean in means])
    sums = ranks.sum(torch.cat([load, parts, count[None]]))
    return sums[: len(load)], list(sums[len(load) : -1] / sums[-1])
