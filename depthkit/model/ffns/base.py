"""What the dense feed-forward kinds share."""

from __future__ import annotations

from pydantic import Field

from depthkit.registry import Spec


class DenseConfig(Spec):
    """Width and accounting of a dense feed-forward with `matrices` matrices of dim x hidden."""

    hidden_dim: int | None = Field(None, ge=1)
    """Hidden width; null means 8/3 dim for gated kinds and 4 dim otherwise, rounded up to a multiple of 8."""

    def matrices(self) -> int:
        """How many dim x hidden matrices."""
        return 2

    def hidden(self, dim: int) -> int:
        """The hidden width at model width `dim`."""
        if self.hidden_dim:
            return self.hidden_dim
        return -(-8 * dim // self.matrices() // 8) * 8

    def check(self, dim: int) -> None:
        """Any width will do."""

    def num_parameters(self, dim: int) -> int:
        """Parameters of one layer."""
        return self.matrices() * dim * self.hidden(dim)

    def active_parameters(self, dim: int) -> int:
        """Parameters a token touches: all of them."""
        return self.num_parameters(dim)

    def flops(self, dim: int, context: int) -> int:
        """Forward FLOPs of a window of `context` tokens; a multiply-add counts as 2."""
        return 2 * context * self.num_parameters(dim)

    def executed_flops(self, dim: int, context: int) -> int:
        """The same: nothing is masked."""
        return self.flops(dim, context)
