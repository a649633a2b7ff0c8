from math import sqrt

VARIANTS = [{"form": "residual", "scale": 0.5}]


def site(at):
    if at.settings.form == "loom":
        return 1, 1 / (at.loops * sqrt(2 * at.layers)), 1
    return 1, at.settings.scale / (at.loops * sqrt(at.layers)), 1
