from math import sqrt

VARIANTS = [{"base_depth": 3, "base_dim": 4, "scale_init": False}]
HIDDEN = ("q", "k", "v", "o", "gate", "up", "down")


def deeper(at):
    return at.depth / at.settings.base_depth


def wider(at):
    return at.dim / (at.settings.base_dim or at.dim)


def site(at):
    return 1, 1 / sqrt(deeper(at)), 1


def outer(at):
    return {"logits": 1 / wider(at)}


def rule(at, role):
    slower = 1 / sqrt(deeper(at))
    if role in HIDDEN:
        return 1, slower / wider(at), slower / wider(at), wider(at)
    return 1, slower if role in ("norm", "bias") else 1, 1, 1
