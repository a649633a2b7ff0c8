"""Rungs are made alike in what the rules ask for, and refused where they are not."""

import pytest

from depthkit import config as c
from depthkit.ladder.cost import counts, train_flops
from tests.ladder.ladders import ladder_dict


def rungs(**change):
    made = {"axes": {"depth": [1, 3], "seed": [0]}, "compare": [], **change}
    return c.parse(ladder_dict(**made), origin="x.yaml").rungs()


def refused(**change):
    with pytest.raises(c.ConfigError) as error:
        rungs(**change)
    return str(error.value)


def run(**change):
    return c.merge(ladder_dict()["run"], change)


LARGE = run(
    model={
        "vocab_size": 300,
        "blocks": {"dense": {"mixer": {"num_heads": 2}, "ffn": {"kind": "swiglu", "hidden_dim": 40}}},
    },
    train={"steps": 40},
)


def test_equal_tokens_are_the_rule_and_are_checked_without_touching_runs():
    axes = {"train.steps": [4, 8], "seed": [0]}
    message = refused(axes=axes)
    assert "training tokens: 128 in steps-4_seed-0 but 256 in steps-8_seed-0" in message
    assert "fairness.budget: free" in message
    assert [r.config.total_steps for r in rungs(axes=axes, fairness={"budget": "free"})] == [4, 8]
    assert len(rungs(axes=axes, fairness={"within": ["train.steps"]})) == 2


def test_equal_flops_are_reached_by_the_number_of_steps():
    long = c.merge(LARGE, {"train": {"steps": 400}})
    found = rungs(run=long, axes={"depth": [2, 8, 32], "seed": [0]}, fairness={"budget": "flops"})
    goal = train_flops(c.parse({**long, "kind": "run"}))
    steps = [rung.config.total_steps for rung in found]
    assert steps[0] == 400  # depth 2 is the base run's own
    assert steps[0] > steps[1] > steps[2]
    for rung, taken in zip(found, steps, strict=True):
        one = train_flops(rung.config) / taken
        assert abs(taken * one - goal) <= one / 2


def test_steps_of_a_rung_move_the_flops_that_are_equalled():
    axes = {"depth": [2], "train.steps": [40, 80], "seed": [0]}
    found = rungs(run=LARGE, axes=axes, fairness={"budget": "flops", "within": ["train.steps"]})
    assert [rung.config.total_steps for rung in found] == [40, 80]


def test_flops_too_coarse_to_be_equal_are_refused():
    few = c.merge(LARGE, {"train": {"steps": 2}})
    assert "training FLOPs" in refused(
        run=few, axes={"depth": [2, 3], "seed": [0]}, fairness={"budget": "flops"}
    )


def test_equal_parameters_make_deep_models_narrow():
    base = c.merge(LARGE, {"model": {"dim": 128}})
    size = {"kind": "parameters", "tolerance": 0.1}
    found = rungs(run=base, axes={"depth": [2, 6, 12], "seed": [0]}, fairness={"size": size})
    goal = counts(c.parse({**base, "kind": "run"})).stored
    dims = [rung.config.model.dim for rung in found]
    assert dims[0] == 128
    assert dims[0] > dims[1] > dims[2]
    for rung in found:
        model = rung.config.model
        assert model.blocks["dense"].ffn.hidden_dim == -(-40 * model.dim // 128 // 8) * 8
        assert counts(rung.config).stored == pytest.approx(goal, rel=0.05)


def test_depthbench_shapes_come_out_of_equal_parameters():
    """arXiv:2609.32534, 400M: (layers, width, hidden), 16 heads, vocabulary 50280."""
    shapes = {
        16: (1216, 3248),
        20: (1120, 2992),
        24: (1024, 2736),
        28: (960, 2560),
        32: (896, 2400),
        70: (640, 1712),
    }
    ffn = {"kind": "swiglu", "hidden_dim": 2736}
    base = run(
        model={
            "dim": 1024,
            "vocab_size": 50280,
            "blocks": {"dense": {"mixer": {"num_heads": 16, "num_kv_heads": 16}, "ffn": ffn}},
            "segments": [{"name": "trunk", "pattern": ["dense"], "repeat": 24}],
        }
    )
    size = {"kind": "parameters", "multiple": 32, "hidden_multiple": 16, "hidden_ratio": 2.66667}
    found = rungs(run=base, axes={"depth": list(shapes), "seed": [0]}, fairness={"size": size})
    made = {
        r.place["depth"]: (r.config.model.dim, r.config.model.blocks["dense"].ffn.hidden_dim) for r in found
    }
    assert made == shapes


def test_parameters_that_no_width_gives_are_refused():
    message = refused(
        run=LARGE,
        axes={"depth": [2, 200], "seed": [0]},
        fairness={"size": {"kind": "parameters", "tolerance": 0.01}},
    )
    assert "parameters:" in message
    assert "fairness.size: free" in message


def test_different_text_is_refused_unless_told():
    variants = {"bytes": {}, "bpe": {"data.tokenizer": {"kind": "bpe", "vocab_size": 300}}}
    axes = {"text": variants, "seed": [0]}
    assert "text-bytes_seed-0 and text-bpe_seed-0 train on different text" in refused(axes=axes)
    assert len(rungs(axes=axes, fairness={"same_data": False})) == 2
    assert len(rungs(axes=axes, fairness={"within": ["text"]})) == 2


def test_windows_of_unlike_length_are_refused():
    shorter = {"long": {}, "short": {"data.sequence_length": 8, "train.batch_size": 4}}
    axes = {"context": shorter, "seed": [0]}
    message = refused(axes=axes, evaluate={"sequences": 4})
    assert "8 in context-short_seed-0, 16 in context-long_seed-0" in message
    assert "evaluate.sequence_length, such as 8" in message
    assert len(rungs(axes=axes, evaluate={"sequences": 4, "sequence_length": 8})) == 2


def test_a_swept_rate_is_an_axis_before_the_replicates():
    found = rungs(
        axes={"seed": [0, 1], "depth": [2]},
        fairness={"learning_rate": {"kind": "swept", "values": [1e-3, 1e-2]}},
    )
    assert [list(rung.place) for rung in found] == [["depth", "train.lr", "seed"]] * 4
    assert [(r.config.train.lr, r.place["seed"]) for r in found] == [
        (1e-3, 0),
        (1e-3, 1),
        (1e-2, 0),
        (1e-2, 1),
    ]


def test_a_sweep_beside_an_axis_of_rates_is_refused():
    axes = {"train.lr": [1e-3], "seed": [0]}
    message = refused(axes=axes, fairness={"learning_rate": {"kind": "swept", "values": [1e-3, 1e-2]}})
    assert "axes.train.lr and fairness.learning_rate both set train.lr" in message


def test_a_transferred_rate_brings_completep_with_the_tuned_depth():
    methods = {"pre": {}, "lns": {"model.regulators": ["lns"]}, "mup": {"model.regulators": ["depth_mup"]}}
    found = rungs(
        axes={"method": methods, "depth": [8], "seed": [0]},
        fairness={"learning_rate": {"kind": "transferred", "base_depth": 4}},
    )
    kinds = [[r.kind for r in rung.config.model.regulators] for rung in found]
    assert kinds == [["completep"], ["lns", "completep"], ["depth_mup"]]
    assert all(rung.config.model.regulators[-1].base_depth == 4 for rung in found)
    assert all(rung.config.train.lr == 0.01 for rung in found)
