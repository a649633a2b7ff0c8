"""The study's measurements against signal propagation worked out by hand, where a closed form exists.

A branch y = W h with W ~ N(0, s^2/D) writes variance s^2 mean(h^2), uncorrelated with the stream.
"""

import math

import numpy as np
import pytest

from depthkit import config as c
from depthkit.ladder.init_study.study import look
from depthkit.model.registries import FFNS, MIXERS
from tests.ladder.studies import LinearBranch, study_dict

DEPTH, S, EMBED = 48, 0.5, 0.3
BOTH = 2 * S**2
"""What the two branches of a block add when they read a stream of variance 1."""


@pytest.fixture(scope="module")
def linear_branch():
    for registry in (MIXERS, FFNS):
        registry.names()
        registry.register("test_linear")(type("Toy", (LinearBranch,), {}))
    yield "test_linear"
    for registry in (MIXERS, FFNS):
        registry.remove("test_linear")


def measured(block, settings, **change):
    """The one cell of a study of one method, averaged over seeds."""
    raw = study_dict((DEPTH,), (0, 1, 2), 96, 2, 32, block, methods={"it": settings}, probes=4, **change)
    raw["run"]["model"] |= {"init": {"kind": "fan_in", "scale": S}, "embedding_std": EMBED}
    found = look(c.parse(raw))
    assert not found.failed
    return found.cells[0]


def close(found, expected, tolerance=0.12):
    np.testing.assert_allclose(np.array(found), np.array(expected), rtol=tolerance)


BLOCKS = np.arange(1, DEPTH + 1)


def test_without_norms_the_variance_grows_by_a_constant_factor(linear_branch):
    cell = measured(linear_branch, {"model.norm": "none"})
    rate = 2 * math.log(1 + S**2)
    assert cell.law == "exponential"
    assert cell.mean("exponential_rate").mean == pytest.approx(rate, rel=0.05)
    close(cell.curves["variance"][:12], EMBED**2 * np.exp(rate * BLOCKS[:12]), 0.2)
    assert cell.mean("jacobian_middle").mean == pytest.approx(math.sqrt(BOTH + S**4), rel=0.05)
    assert math.cos(cell.mean("angle_middle").mean) == pytest.approx(1 / (1 + S**2), rel=0.05)


def test_under_pre_ln_every_block_adds_the_same_variance(linear_branch):
    cell = measured(linear_branch, {})
    expected = EMBED**2 + BOTH * BLOCKS
    assert cell.law == "power law"
    assert cell.mean("power_exponent").mean == pytest.approx(1, abs=0.1)
    close(cell.curves["variance"], expected)
    cosine = math.sqrt(expected[-2] / expected[-1])
    assert cell.mean("angle_last").mean == pytest.approx(math.acos(cosine), rel=0.1)


def test_under_lns_the_variance_grows_like_the_harmonic_numbers(linear_branch):
    cell = measured(linear_branch, {"model.regulators": ["lns"]})
    close(cell.curves["variance"], EMBED**2 + BOTH * np.cumsum(1 / BLOCKS))
    assert cell.mean("power_exponent").mean < 0.5


def test_branches_over_sqrt_2L_add_the_same_at_every_depth(linear_branch):
    scaled = {"kind": "residual_scale", "scale": 2**-0.5, "total_power": -0.5}
    cell = measured(linear_branch, {"model.regulators": [scaled]})
    close(cell.curves["variance"], EMBED**2 + S**2 * BLOCKS / DEPTH)


@pytest.mark.parametrize("block", [None, "linear"])
def test_under_post_ln_the_variance_is_one(block, linear_branch):
    cell = measured(block and linear_branch, {"model.placement": "post", "model.final_norm": False})
    close(cell.curves["variance"], np.ones(DEPTH), 0.04)


def test_in_a_transformer_pre_ln_grows_linearly_and_lns_clearly_slower():
    scale = {"init": {"kind": "fan_in", "scale": 0.64}, "embedding_std": 0.02}
    raw = study_dict((64,), (0, 1), 64, 2, 64)
    raw["run"]["model"] |= scale
    pre, lns = look(c.parse(raw)).cells
    assert pre.mean("power_r2").mean > pre.mean("exponential_r2").mean
    assert 0.85 < pre.mean("power_exponent").mean < 1.35
    assert lns.mean("power_exponent").mean < 0.6
    assert lns.mean("jacobian_last").mean < pre.mean("jacobian_last").mean / 2


def test_blocks_that_write_nothing_are_the_identity():
    cell = measured(None, {"model.regulators": ["skip_init"]})
    close(cell.curves["variance"], [cell.curves["variance"][0]] * DEPTH, 1e-6)
    assert cell.law == "flat"
    assert cell.mean("jacobian_first").mean == cell.mean("angle_last").mean == 0
    assert cell.mean("gradient_ratio") is None
