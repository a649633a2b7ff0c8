from math import sqrt

VARIANTS = [{"index": "stored"}]


def site(at):
    return 1, 1, sqrt(sqrt(2 * at.L))


def rule(at, role):
    return (1 / sqrt(sqrt(8 * at.L)) if role in ("v", "o", "up", "down") else 1), 1, 1, 1
