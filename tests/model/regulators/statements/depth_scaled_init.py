from math import sqrt

VARIANTS = [{"outputs_only": True}, {"index": "stored"}]
EVERY_MATRIX = ("q", "k", "v", "o", "gate", "up", "down")


def site(at):
    return 1, 1, 1


def rule(at, role):
    scaled = ("o", "down") if at.settings.outputs_only else EVERY_MATRIX
    return (1 / sqrt(at.l) if role in scaled else 1), 1, 1, 1
