"""Models with LayerRoPE in them, for its tests."""

from tests.models import make_model

STARTS = ("damp_amplify", "neutral", "lns", "equal_angle")
FORMS = ("basis", "table", "fixed")


def rope(**settings):
    return {"kind": "layer_rope", **settings}


def rope_model(depth=4, loops=1, more=(), **settings):
    return make_model(depth=depth, loops=loops, regulators=[rope(**settings), *more])


def regulator(model):
    return model.schedules.regulators[0]
