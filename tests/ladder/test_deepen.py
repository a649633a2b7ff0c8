import pytest

from depthkit import config as c
from depthkit.ladder.deepen import DeepenConfig, deepen


def run(*segments):
    return {"model": {"segments": [{"name": n, "pattern": p, **more} for n, p, more in segments]}}


def deepened(raw, depth, **rule):
    made = deepen(raw, depth, DeepenConfig(**rule))["model"]["segments"]
    return [(s.get("repeat", 1), s.get("loops", 1)) for s in made]


ONE = run(("core", ["a", "b"], {"loops": 4}))
MIX = run(("post", ["a"], {"repeat": 6}), ("pre", ["a"], {"repeat": 18}))
HUGINN = run(
    ("prelude", ["a"], {"repeat": 2}), ("core", ["a"], {"repeat": 4, "loops": 3}), ("coda", ["a"], {})
)


def test_depth_counts_visits_loops_included():
    assert deepened(ONE, 16) == [(2, 4)]
    assert deepened(ONE, 16, by="loops") == [(1, 8)]
    with pytest.raises(c.ConfigError, match="12 is not a multiple of the 8 visits"):
        deepened(ONE, 12)


@pytest.mark.parametrize(
    ("depth", "counts"), [(48, (12, 36)), (8, (2, 6)), (6, (2, 4)), (2, (1, 1)), (24, (6, 18))]
)
def test_a_quarter_stays_a_quarter(depth, counts):
    assert tuple(repeat for repeat, _ in deepened(MIX, depth)) == counts


def test_only_the_named_segments_grow_and_the_others_count():
    assert deepened(HUGINN, 51, by="loops") == [(2, 1), (4, 12), (1, 1)]
    assert deepened(HUGINN, 27, segments=["core"]) == [(2, 1), (8, 3), (1, 1)]
    with pytest.raises(c.ConfigError, match="50 is not a multiple of the 4 visits of one pattern beside 3"):
        deepened(HUGINN, 50, by="loops")


def test_units_of_unlike_size_are_filled_exactly_or_refused():
    raw = run(("wide", ["a", "b"], {"repeat": 2}), ("slim", ["a"], {"repeat": 4}))
    assert deepened(raw, 11) == [(3, 1), (5, 1)]
    with pytest.raises(c.ConfigError, match="2 visits cannot be laid out: wide in steps of 2, slim"):
        deepened(raw, 2)


@pytest.mark.parametrize(
    ("raw", "depth", "rule", "message"),
    [
        (HUGINN, 8, {}, "which of them grows is open"),
        (MIX, 8, {"by": "loops"}, "which of them grows is open"),
        (MIX, 8, {"segments": ["prre"]}, "did you mean 'pre'"),
        (run(("a", ["x"], {"loops": {"kind": "uniform", "max": 4}})), 8, {"by": "loops"}, "uniform sampler"),
        (MIX, 0, {}, "whole number"),
        (MIX, 2.5, {}, "whole number"),
        (MIX, True, {}, "whole number"),
        (run(("a", [], {})), 8, {}, "model.segments.0: pattern"),
    ],
)
def test_what_is_open_or_impossible_is_refused(raw, depth, rule, message):
    with pytest.raises(c.ConfigError, match=message):
        deepened(raw, depth, **rule)
