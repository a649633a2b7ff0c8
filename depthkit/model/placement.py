"""Where a block normalises: before the branch, after the branch, after the add."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator

from depthkit.registry import unknown


class Placement(NamedTuple):
    """Which norm sites of a branch exist: x -> after_add(skip x + write after_branch(branch(before(x))))."""

    before_branch: bool
    after_branch: bool
    after_add: bool


PLACEMENTS = {
    "pre": Placement(True, False, False),
    "post": Placement(False, False, True),
    "reordered": Placement(False, True, False),
    "sandwich": Placement(True, True, False),
    "huginn": Placement(True, False, True),
}
"""Named placements: Pre-LN, Post-LN (arXiv 2002.04745), OLMo-2's reordered norm (arXiv 2501.00656),
Sandwich-LN (with `embed_norm: true` it is Peri-LN, arXiv 2502.02732), Huginn (arXiv 2502.05171)."""


def resolve(placement: Any) -> Placement:
    """The sites of a placement given by name or as a triple of 0 and 1.

    Raises:
        ValueError: an unknown name, or a triple of anything else.
    """
    if isinstance(placement, str):
        if placement not in PLACEMENTS:
            raise ValueError(unknown("placement", placement, PLACEMENTS))
        return PLACEMENTS[placement]
    triple = list(placement)
    if len(triple) != 3 or any(site not in (0, 1) for site in triple):
        raise ValueError(f"a placement is one of {', '.join(PLACEMENTS)} or three of 0 and 1, not {triple}")
    return Placement(*(bool(site) for site in triple))


def _check(value: Any) -> Any:
    if not isinstance(value, str | list | tuple):
        raise ValueError(f"a placement is one of {', '.join(PLACEMENTS)} or three of 0 and 1")
    resolve(value)
    return value if isinstance(value, str) else [int(site) for site in value]


PlacementField = Annotated[str | list[int], BeforeValidator(_check)]
