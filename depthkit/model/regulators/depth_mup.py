"""Depth-muP: CompleteP with the square root of depth."""

from __future__ import annotations

from pydantic import Field

from depthkit.model.registries import REGULATORS
from depthkit.model.regulators.completep import CompleteP


@REGULATORS.register("depth_mup")
class DepthMuP(CompleteP):
    """Depth-muP: branches write (L/base_depth)^-1/2, and learning rates inside blocks shrink alike."""

    source = "arXiv:2310.02244; in the parametrisation of arXiv:2505.01618 with alpha 1/2"

    class Config(CompleteP.Config):
        """Settings of `depth_mup`."""

        alpha: float = Field(0.5, ge=0)
        """Power of depth on what branches write; 0.5 is depth-muP, 1 is CompleteP."""
