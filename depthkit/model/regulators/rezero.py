"""A learned scalar on what every branch writes, and no norm."""

from __future__ import annotations

from depthkit.model.registries import REGULATORS
from depthkit.model.regulators.skip_init import SkipInit


@REGULATORS.register("rezero")
class ReZero(SkipInit):
    """ReZero: a learned scalar a site on what a branch writes, 0 at the start, in blocks without norms.

    Under a norm the same scalar is `skip_init`. With `norm: none` there is no final norm either, unless
    `final_norm` names one: the stream starts at the scale of the embedding, and logits grow slowly without.
    """

    equation = "x <- x + alpha_l * branch(x), alpha_l learned, alpha_l = initial at the start"
    source = "arXiv:2003.04887"
    needs_norm = False

    class Config(SkipInit.Config):
        """Settings of `rezero`, which are those of `skip_init`."""
