from math import sqrt

VARIANTS = [
    {"exponent": 0.25},
    {"count": "branches"},
    {"index": "stored"},
    {"form": "learned"},
    {"form": "learned", "index": "stored", "count": "branches"},
    {"form": "folded", "index": "stored"},
]


def factor(at):
    l = 2 * at.l - 1 + at.branch if at.settings.count == "branches" else at.l
    return 1 / (sqrt(l) if at.settings.exponent == 0.5 else sqrt(sqrt(l)))


def site(at):
    if at.settings.form == "folded":
        return 1, 1, 1
    if at.settings.form == "learned":
        return at.learned["table.gain"][at.l - 1, at.branch], 1, 1
    return factor(at), 1, 1


def norm_start(at):
    return factor(at) if at.settings.form == "folded" else 1
