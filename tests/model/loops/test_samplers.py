"""Loop counts: distributions against their published moments, and settings that are refused."""

import numpy as np
import pytest

from depthkit.model.loops.registries import LOOPS
from depthkit.model.loops.samplers import scaled_count
from tests.model.loops.written import segments
from tests.models import make_config, model_dict

DRAWS = 40_000


def sampler(kind, **settings):
    return LOOPS.get(kind).Config(**settings)


def draws(config, count=DRAWS, scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    return np.array([config.draw(rng, scale) for _ in range(count)])


def test_poisson_lognormal_has_the_published_moments():
    found = draws(sampler("poisson_lognormal", mean=32, backprop=8, max=4000))
    assert found.mean() == pytest.approx(33.0, abs=0.3)
    assert np.median(found) == pytest.approx(29, abs=1)
    assert np.percentile(found, 95) == pytest.approx(67, abs=2)
    assert np.percentile(found, 99) == pytest.approx(94, abs=4)
    assert np.minimum(found, 8).mean() == pytest.approx(7.98, abs=0.01)
    assert np.maximum(found - 8, 0).mean() == pytest.approx(25.0, abs=0.3)


def test_its_centre_is_not_below_backprop():
    found = draws(sampler("poisson_lognormal", mean=4, backprop=8, max=4000))
    assert found.mean() == pytest.approx(9.0, abs=0.1)
    assert np.minimum(found, 8).mean() == pytest.approx(6.62, abs=0.03)
    alone = draws(sampler("poisson_lognormal", mean=4, max=4000))
    assert alone.mean() == pytest.approx(5.0, abs=0.1)


def test_its_moments_are_those_of_the_mixture():
    """Var(1 + Poisson(rate)) = E rate + Var rate, with Var rate = m^2 (exp(sigma^2) - 1)."""
    found = draws(sampler("poisson_lognormal", mean=20, sigma=0.3, max=4000))
    assert found.mean() == pytest.approx(21, rel=0.01)
    assert found.var() == pytest.approx(20 + 400 * (np.exp(0.09) - 1), rel=0.04)


def test_its_tail_is_cut():
    config = sampler("poisson_lognormal", mean=4, backprop=8)
    assert (config.nominal, config.longest) == (4, 32)
    assert sampler("poisson_lognormal", mean=5).longest == 20
    short = sampler("poisson_lognormal", mean=5, max=6)
    assert draws(short, 500).max() == short.longest == 6
    assert draws(short, 500).min() == 1


def test_uniform_has_every_count_alike():
    config = sampler("uniform", min=2, max=6)
    counts = np.bincount(draws(config, 20_000), minlength=8) / 20_000
    assert counts[2:7] == pytest.approx([0.2] * 5, abs=0.02)
    assert counts[2:7].sum() == pytest.approx(1)
    assert (config.nominal, config.longest) == (4, 6)
    assert sampler("uniform", max=8).nominal == 5
    assert sampler("uniform", max=8, mean=3).nominal == 3
    assert sampler("uniform", max=1).draw(np.random.default_rng(0)) == 1


def test_fixed_is_fixed():
    config = sampler("fixed", mean=7, backprop=3)
    assert set(draws(config, 20)) == {7}
    assert (config.nominal, config.longest, config.backprop) == (7, 7, 3)


def test_a_curriculum_shrinks_every_distribution():
    assert set(draws(sampler("fixed", mean=8), 20, scale=0.3)) == {3}
    assert set(draws(sampler("uniform", min=3, max=8), 200, scale=0.5)) == {3, 4}
    assert set(draws(sampler("uniform", min=3, max=8), 200, scale=0.2)) == {2}
    half = draws(sampler("poisson_lognormal", mean=32, max=4000), 20_000, scale=0.5)
    assert half.mean() == pytest.approx(17, rel=0.02)
    held = draws(sampler("poisson_lognormal", mean=32, backprop=8, max=4000), 20_000, scale=0.01)
    assert held.mean() == pytest.approx(9, rel=0.02)


def test_counts_are_rounded_up_and_at_least_one():
    assert [scaled_count(5, s) for s in (1.0, 0.81, 0.8, 0.2, 1e-9)] == [5, 5, 4, 1, 1]
    assert scaled_count(10, 0.7) == 7  # 0.7 x 10 is a little more than 7 in binary
    assert scaled_count(3, 1 - 1e-15) == 3


REFUSED = {
    "no loop": ({"loops": 0}, r"loops: Input should be greater than or equal to 1 \(got 0\)"),
    "half a loop": ({"loops": 2.5}, r"loops: Input should be a whole number of 1 or more, or a sampler"),
    "a switch": ({"loops": True}, "whole number of 1 or more"),
    "unknown": ({"loops": "unifrom"}, "unknown loop sampler kind 'unifrom'; did you mean 'uniform'"),
    "no maximum": ({"loops": "uniform"}, "max"),
    "upside down": (
        {"loops": {"kind": "uniform", "min": 5, "max": 3}},
        r"min \(5\) must not exceed max \(3\)",
    ),
    "mean outside": (
        {"loops": {"kind": "uniform", "max": 3, "mean": 4}},
        r"mean \(4\) must lie between min \(1\) and max \(3\)",
    ),
    "cut below the mean": (
        {"loops": {"kind": "poisson_lognormal", "mean": 9, "max": 4}},
        r"max \(4\) must not be below mean \(9\)",
    ),
    "no backprop": ({"loops": {"kind": "fixed", "mean": 3, "backprop": 0}}, "greater than or equal to 1"),
    "cut off": (
        {"loops": {"kind": "fixed", "mean": 3, "backprop": 1}},
        r"loops.backprop \(1\) needs an injection",
    ),
    "blind": ({"loops": 2, "state_init": "normal"}, "state_init 'normal' needs an injection"),
    "blind zero": ({"loops": 2, "state_init": "zero"}, "state_init 'zero' needs an injection"),
    "policy": ({"inject": "ad"}, "unknown injection kind 'ad'; did you mean 'add'"),
    "option": ({"carry": {"kind": "ema", "decai": 0.1}}, "unknown key 'decai'; did you mean 'decay'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_settings_are_refused(name):
    from depthkit import config as configs
    from depthkit.model import ModelConfig

    settings, message = REFUSED[name]
    raw = model_dict(segments=segments({"loops": 3, **settings}, loops=3))
    with pytest.raises(configs.ConfigError, match=message):
        configs.validate(ModelConfig, raw, "model")


def test_a_final_norm_that_is_not_there_cannot_be_used():
    with pytest.raises(ValueError, match=r"segments.core.out_norm: 'final', but the model has no final norm"):
        make_config(segments=segments({"out_norm": "final"}), final_norm=False)
