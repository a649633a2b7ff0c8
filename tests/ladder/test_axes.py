import pytest

from depthkit import config as c
from depthkit.ladder.axes import apply, check_disjoint, grid
from depthkit.ladder.spec import rung_name
from tests.ladder.ladders import ladder_dict

AXES = {
    "method": {"plain": {"model.regulators": []}, "lns": {"model.regulators": ["lns"]}},
    "depth": [2, 4],
    "seed": [0, 1, 2],
}
RUN = {"model": {"regulators": [], "segments": [{"name": "core", "pattern": ["a", "b"]}]}}


def places(*arguments):
    return [tuple(step.label for step in combination.values()) for combination in grid(*arguments)]


def test_grid_takes_every_combination_once_last_axis_fastest():
    found = places(AXES)
    assert len(found) == len(set(found)) == 12
    assert found[:4] == [("plain", 2, 0), ("plain", 2, 1), ("plain", 2, 2), ("plain", 4, 0)]


def test_zipped_axes_advance_together_and_keep_the_order_of_the_axes():
    axes = {"depth": [2, 4], "seed": [0, 1], "train.lr": [0.1, 0.2]}
    assert places(axes, [["depth", "train.lr"]]) == [(2, 0, 0.1), (2, 1, 0.1), (4, 0, 0.2), (4, 1, 0.2)]


def test_excluded_combinations_agree_with_every_entry_of_one_item():
    found = places(AXES, (), [{"method": "lns", "seed": [1, 2]}, {"depth": 4}])
    assert found == [("plain", 2, 0), ("plain", 2, 1), ("plain", 2, 2), ("lns", 2, 0)]


def test_a_combination_sets_its_keys_and_deepens_last():
    wider = {"wide": {"model.segments.core.pattern": ["a", "b", "a", "b"]}}
    made = apply(RUN, next(grid({"depth": [8], "width": wider, "seed": [2]})))
    assert made["model"]["segments"][0]["repeat"] == 2  # of the pattern the other axis set
    assert made["seed"] == 2
    assert "repeat" not in RUN["model"]["segments"][0]


@pytest.mark.parametrize(
    "second",
    [
        {"model.regulators": [["lns"]]},
        {"model.regulators.0": ["lns"]},
        {"v": {"one": {"model": {"dim": 3}}}},
    ],
)
def test_two_axes_may_not_set_one_key_nor_a_part_of_what_the_other_sets(second):
    with pytest.raises(c.ConfigError, match=r"axes\.method and axes\.[a-z.0]+ both set model"):
        check_disjoint({"method": AXES["method"], **second})


def test_items_of_lists_are_one_key_by_name_and_by_number():
    axes = {"model.segments.core.loops": [1], "model.segments.0.loops": [2]}
    with pytest.raises(c.ConfigError, match=r"both set model\.segments\.0\.loops"):
        check_disjoint(axes, RUN)
    check_disjoint({"model.segments.core.loops": [1], "model.segments.0.inject": ["add"]}, RUN)


def test_names_make_folders():
    assert rung_name({"model.embedding_std": 1.0, "depth": 32}) == "embedding_std-1.0_depth-32"
    assert "/" not in rung_name({"data.corpus": "a/b c"})
    first, second = (rung_name({"method": "x" * 300 + end}) for end in "ab")
    assert len(first) <= 120
    assert first != second


def refused(**change):
    with pytest.raises(c.ConfigError) as error:
        c.parse(ladder_dict(**change), origin="x.yaml").rungs()
    return str(error.value)


SEEDS = {"compare": [], "replicate": "seed"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"replicate": "sed"}, "did you mean 'seed'"),
        ({"compare": [{"axis": "methd", "baseline": "plain"}]}, "did you mean 'method'"),
        ({"compare": [{"axis": "method", "baseline": "plian"}]}, "did you mean 'plain'"),
        ({"axes": {"seed": []}, "compare": []}, "at least one value"),
        ({"axes": {"seed": [0, 0]}, "compare": []}, "axes.seed: 0 is listed twice"),
        ({"axes": {"seed": [0], "model.nrom": ["rms"]}, "compare": []}, "rung seed-0_nrom-rms: model.nrom"),
        ({"axes": {"seed": [0], "model.placement": ["a/b", "a-b"]}, **SEEDS}, "rung seed-0_placement-a-b"),
        ({"axes": {"seed": [0], "depth": [2], "model.segments.trunk.repeat": [2]}, **SEEDS}, "both set"),
        ({"zips": [["depth", "sed"]]}, "did you mean 'seed'"),
        ({"zips": [["depth", "seed"], ["seed", "method"]]}, "'seed' is named twice"),
        ({"axes": {"seed": [0, 1], "depth": [1]}, "zips": [["depth", "seed"]], **SEEDS}, "as many values"),
        ({"exclude": [{"dept": 1}]}, "did you mean 'depth'"),
        ({"exclude": [{"depth": [1, 2]}]}, "unknown value 2"),
        ({"exclude": [{}]}, "leaves no rung"),
        ({"fairness": {"within": ["dept"]}}, "did you mean 'depth'"),
        ({"fairness": {"budget": "tokns"}}, "did you mean 'tokens'"),
        ({"launch": {"workers": 0}}, "workers"),
        ({"launch": "slrum"}, "did you mean 'slurm'"),
        ({"evaluate": {"sequnces": 3}}, "did you mean 'sequences'"),
    ],
)
def test_bad_ladders_are_refused_before_anything_runs(change, message):
    assert message in refused(**change)


def test_two_places_may_not_share_a_folder():
    variants = {"a/b": {"model.dim": 16}, "a-b": {"model.dim": 8}}
    assert "would share the folder seed-0_method-a-b" in refused(
        axes={"seed": [0], "method": variants}, compare=[]
    )
