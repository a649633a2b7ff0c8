"""What the routers of one training step did: load, entropy, and whether loops choose the same experts.

Shapes: B batch, T time, E experts, k experts a token.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from depthkit.model import Key, Output
from depthkit.model.ffns.router import selection_overlap


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
    def of(cls, output: Output, counted: Tensor) -> ExpertTelemetry | None:
        """From a forward; `counted [B, T]` says which tokens count. None where there are no experts.

        An overlap of 1 at every loop is selection collapse: looping then repeats one dense computation.
        """
        routed = {v.key: aux for v, aux in zip(output.visits, output.aux, strict=True) if "experts" in aux}
        if not routed:
            return None
        load, entropy, overlap, chance = {}, {}, {}, {}
        for key, aux in routed.items():
            shares = aux["load"].detach().double()
            load[key] = (shares / shares.sum().clamp(min=1)).tolist()
            entropy[key] = float(aux["entropy"])
            before = routed.get(key._replace(loop=key.loop - 1))
            if before is not None:
                overlap[key] = float(selection_overlap(before["experts"], aux["experts"])[counted].mean())
                chance[key] = aux["experts"].shape[-1] / len(shares)
        return cls(load, entropy, overlap, chance)
