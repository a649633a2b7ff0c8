"""The depth sweep: every kind is in it, and what fails is listed."""

import importlib.util
from pathlib import Path

import pytest

from depthkit import config as c
from depthkit.data import open_data
from depthkit.ladder.hosts import AXES, tried

PATH = Path(__file__).parents[2] / "benchmarks" / "depth_sweep.py"


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("depth_sweep", PATH)
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["depth_sweep"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["depth_sweep"]


def test_every_regulator_has_a_place_in_the_sweep(bench):
    found = tried(bench.base())
    assert set(AXES["regulators"].registry.names()) < set(found)
    assert not any(reason for _, reason in found.values())


def test_twenty_steps_give_a_finite_row_and_failures_are_listed(bench):
    raw = bench.base()
    data = open_data(c.parse(raw).data, 0)
    good = bench.sweep(raw, {"model.regulators": ["lns"]}, 2, data)
    assert not good.error
    assert good.last < good.first
    bad = bench.sweep(raw, {"model.regulators": ["lnss"]}, 2, data)
    blown = bench.sweep(raw, {"model.regulators": [{"kind": "residual_scale", "scale": 1e39}]}, 2, data)
    assert "did you mean 'lns'" in bad.error
    assert blown.error == "not finite at step 1"
    page = bench.page({"lns": [good] * 4, "bad": [bad] * 4, "blown": [blown] * 4}, 1.0, Path("p.md"))
    assert f"{good.first:.2f} -> {good.last:.2f}" in page
    assert "- bad, 8 blocks: ConfigError" in page
    assert "- blown, 8 blocks: not finite" in page
