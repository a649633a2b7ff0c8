VARIANTS = [
    {"scale": 0.3},
    {"count": "branches", "total_power": -0.5},
    {"total_power": -1.0, "index": "stored"},
    {"count": "branches", "index_power": -0.25},
]


def site(at):
    per_block = 2 if at.settings.count == "branches" else 1
    l = at.l * per_block - (per_block - 1) * (1 - at.branch)
    L = at.L * per_block
    return 1, at.settings.scale * L**at.settings.total_power * l**at.settings.index_power, 1
