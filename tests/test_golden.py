"""Losses stay what they were, whatever is made faster."""

import json

import pytest

from tests.golden import ARCHITECTURES, FILE, capability, losses

RECORDED = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_five_steps_give_the_recorded_losses(name):
    tolerance = 1e-6 if RECORDED["capability"] == capability() else 1e-4
    assert losses(name) == pytest.approx(RECORDED["losses"][name], rel=tolerance)


def test_the_recorded_losses_differ_between_architectures():
    last = [losses[-1] for losses in RECORDED["losses"].values()]
    assert len({round(loss, 4) for loss in last}) == len(ARCHITECTURES)
