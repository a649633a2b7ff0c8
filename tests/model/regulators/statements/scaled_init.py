from math import sqrt


def site(at):
    return 1, 1, 1


def rule(at, role):
    return (1 / sqrt(2 * at.L) if role in ("o", "down") else 1), 1, 1, 1
