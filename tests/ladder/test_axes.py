import pytest

from depthkit import config as c
from depthkit.ladder.axes import apply, check_disjoint, deepen, grid
from depthkit.ladder.spec import rung_name
from tests.ladder.ladders import ladder_dict

AXES = {
    "method": {"plain": {"model.regulators": []}, "lns": {"model.regulators": ["lns"]}},
    "depth": [2, 4],
    "seed": [0, 1, 2],
}


def labels(combination):
    return [step.label for step in combination.values()]


def test_grid_takes_every_combination_once_last_axis_fastest():
    places = [tuple(labels(c)) for c in grid(AXES)]
    assert len(places) == len(set(places)) == 12
    assert places[:4] == [("plain", 2, 0), ("plain", 2, 1), ("plain", 2, 2), ("plain", 4, 0)]


def test_a_combination_sets_its_keys_and_deepens():
    run = {"model": {"regulators": [], "segments": [{"name": "core", "pattern": ["a", "b"], "loops": 1}]}}
    made = apply(run, list(grid(AXES))[-1])
    assert made["model"]["regulators"] == ["lns"]
    assert made["model"]["segments"][0]["repeat"] == 2
    assert made["seed"] == 2
    assert "repeat" not in run["model"]["segments"][0]


def test_depth_counts_visits_loops_included():
    run = {"model": {"segments": [{"name": "core", "pattern": ["a"], "loops": 4}]}}
    assert deepen(run, 8)["model"]["segments"][0]["repeat"] == 2
    with pytest.raises(c.ConfigError, match="6 is not a multiple of the 4 visits"):
        deepen(run, 6)
    with pytest.raises(c.ConfigError, match="2 segments"):
        deepen({"model": {"segments": [{}, {}]}}, 8)


def test_two_axes_may_not_set_one_key():
    with pytest.raises(
        c.ConfigError, match=r"axes\.method and axes\.model\.regulators both set model\.regulators"
    ):
        check_disjoint({"method": AXES["method"], "model.regulators": [["lns"]]})


def test_names_make_folders():
    assert rung_name({"model.embedding_std": 1.0, "depth": 32}) == "embedding_std-1.0_depth-32"
    assert "/" not in rung_name({"data.corpus": "a/b c"})


def refused(**change):
    with pytest.raises(c.ConfigError) as error:
        c.parse(ladder_dict(**change), origin="x.yaml").rungs()
    return str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"replicate": "sed"}, "did you mean 'seed'"),
        ({"compare": [{"axis": "methd", "baseline": "plain"}]}, "did you mean 'method'"),
        ({"compare": [{"axis": "method", "baseline": "plian"}]}, "did you mean 'plain'"),
        ({"axes": {"seed": []}, "compare": []}, "at least one value"),
        ({"axes": {"seed": [0], "model.nrom": ["rms"]}, "compare": []}, "rung seed-0_nrom-rms: model.nrom"),
        ({"workers": 0}, "workers"),
        ({"evaluate": {"sequnces": 3}}, "did you mean 'sequences'"),
    ],
)
def test_bad_ladders_are_refused_before_anything_runs(change, message):
    assert message in refused(**change)
