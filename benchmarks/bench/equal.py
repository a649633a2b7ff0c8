"""Candidates are the same function, with the same parameters, before they are timed."""

from __future__ import annotations

import math

from torch import linalg

from benchmarks.bench.candidate import Candidate, Measured

TOLERANCES = {"fp32": (1e-5, 1e-4), "bf16": (1e-3, 0.05)}
"""Largest relative difference of the loss, and of all gradients together."""
ONE_PARAMETER = 10
"""How many times more the gradient of a single parameter may differ."""


class DifferentError(ValueError):
    """Two candidates do not compute the same."""


def check_equal(name: str, peer: Candidate, reference: Candidate, expected: Measured) -> tuple[float, float]:
    """Compare `peer` with `reference`, whose loss and gradients are `expected`.

    Returns:
        Relative differences of the loss and of the gradient.

    Raises:
        DifferentError: another number of parameters, or a difference above `TOLERANCES`.
    """
    if peer.num_parameters != reference.num_parameters:
        raise DifferentError(f"{name} has {peer.num_parameters} parameters, not {reference.num_parameters}")
    found = peer.measure()
    loss = abs(found.loss / expected.loss - 1)
    gradient, worst, where = gradient_difference(found, expected)
    limits = TOLERANCES[reference.shape.precision]
    if not (loss <= limits[0] and gradient <= limits[1] and worst <= ONE_PARAMETER * limits[1]):
        raise DifferentError(
            f"{name} computes something else: its loss {found.loss:.7g} is {loss:.1e} from "
            f"{expected.loss:.7g} (at most {limits[0]:g}), its gradient differs by {gradient:.1e} "
            f"(at most {limits[1]:g}), that of {where} by {worst:.1e}"
        )
    return loss, gradient


def gradient_difference(found: Measured, expected: Measured) -> tuple[float, float, str]:
    """Relative difference of all gradients together, the largest of a single parameter, and which it is.

    Raises:
        DifferentError: gradients of other parameters.
    """
    if found.gradients.keys() != expected.gradients.keys():
        odd = sorted(found.gradients.keys() ^ expected.gradients.keys())
        raise DifferentError(f"only one of the two has a gradient of {', '.join(odd[:3])}")
    sizes = {name: float(linalg.vector_norm(g)) for name, g in expected.gradients.items()}
    errors = {
        name: float(linalg.vector_norm(found.gradients[name] - g)) for name, g in expected.gradients.items()
    }
    alone = {name: errors[name] / sizes[name] if sizes[name] else math.inf for name in sizes}
    where = max(alone, key=lambda name: alone[name])
    return math.hypot(*errors.values()) / math.hypot(*sizes.values()), alone[where], where
