from math import sqrt


def site(at):
    return 1, 1, sqrt(2 * at.depth)


def rule(at, role):
    return (1 / sqrt(8 * at.depth) if role in ("v", "o", "up", "down") else 1), 1, 1, 1
