VARIANTS = [{"base_depth": 3, "base_dim": 4, "scale_init": False}, {"alpha": 0.75, "index": "stored"}]
HIDDEN = ("q", "k", "v", "o", "gate", "up", "down")


def sizes(at):
    """m_L, m_D and alpha."""
    return at.L / at.settings.base_depth, at.dim / (at.settings.base_dim or at.dim), at.settings.alpha


def site(at):
    deeper, _, alpha = sizes(at)
    return 1, 1 / deeper**alpha, 1


def outer(at):
    return {"logits": 1 / sizes(at)[1]}


def rule(at, role):
    deeper, wider, alpha = sizes(at)
    slower = deeper**alpha / deeper
    if role in ("norm", "bias"):
        return 1, slower, 1, 1
    if role not in HIDDEN:
        return 1, 1, 1, 1
    return 1, slower / wider, 1 / (deeper**alpha * wider), wider
