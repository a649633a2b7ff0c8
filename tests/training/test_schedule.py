import math

import pytest

from depthkit.training.schedule import SCHEDULES


def make(kind, total, **settings):
    cls = SCHEDULES.get(kind)
    return cls(cls.Config(**settings), total)


@pytest.mark.parametrize("kind", SCHEDULES.names())
@pytest.mark.parametrize(("total", "warmup"), [(5, 0), (60, 6), (1000, 100), (5000, 100)])
def test_warm_up_is_the_smaller_of_100_and_a_tenth(kind, total, warmup):
    schedule = make(kind, total)
    assert [schedule(s) for s in range(1, warmup + 1)] == [s / warmup for s in range(1, warmup + 1)]
    assert schedule.warmup == warmup


@pytest.mark.parametrize("kind", SCHEDULES.names())
@pytest.mark.parametrize("final", [0.1, 0.0, 0.37, 1.0])
def test_the_last_step_is_left_with_the_final_fraction(kind, final):
    schedule = make(kind, 83, final=final)
    assert schedule(83) == pytest.approx(final, abs=1e-12)
    after = [schedule(step) for step in range(schedule.warmup + 1, 84)]
    assert after == sorted(after, reverse=True)
    assert max(after) <= 1


def test_cosine_follows_its_closed_form():
    schedule = make("cosine", 210, warmup=10)
    assert schedule(110) == pytest.approx(0.1 + 0.9 / 2)
    assert schedule(60) == pytest.approx(0.1 + 0.9 * math.cos(math.pi / 8) ** 2)


def test_linear_follows_its_closed_form():
    schedule = make("linear", 210, warmup=10, final=0.0)
    assert [schedule(s) for s in (11, 60, 110, 160)] == pytest.approx([0.995, 0.75, 0.5, 0.25])


def test_wsd_keeps_the_peak_and_then_falls():
    schedule = make("wsd", 100, warmup=10, decay=0.2, final=0.5)
    assert [schedule(s) for s in range(10, 81)] == [1.0] * 71
    assert [schedule(s) for s in (85, 90, 95)] == pytest.approx([0.875, 0.75, 0.625])


@pytest.mark.parametrize("kind", SCHEDULES.names())
def test_one_step_is_taken_at_a_learning_rate(kind):
    assert make(kind, 1)(1) > 0


def test_warm_up_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"schedule.warmup: 60 does not fit into 60 steps"):
        make("cosine", 60, warmup=60)


def test_a_decay_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"schedule.decay: 50 steps of decay and 51 of warm-up"):
        make("wsd", 100, warmup=51, decay=0.5)
