"""DeepNorm for looped models."""

from __future__ import annotations

from pydantic import Field

from depthkit.model.registries import REGULATORS
from depthkit.model.regulators.deepnorm import DeepNorm


@REGULATORS.register("deeploop")
class DeepLoop(DeepNorm):
    """DeepLoop: DeepNorm with a larger power of the unrolled depth L.

    The bound behind it asks for exponent 1/2 where the visits of a layer align and 1/4 where they do not; as
    published, with 1/2 throughout, it does not become DeepNorm when nothing is looped. Published with a norm
    before the branch as well (placement huginn).
    """

    source = "arXiv:2607.13491"
    placements = ("post", "huginn")

    class Config(DeepNorm.Config):
        """Settings of `deeploop`."""

        exponent: float = Field(0.5, ge=0)
        """Power of depth in alpha and beta; 0.5 is the published form, 0.25 is DeepNorm's, 0 is neutral."""
