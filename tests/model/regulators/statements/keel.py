VARIANTS = [{"alpha": 3.5}]


def site(at):
    return 1, 1, at.settings.alpha or 2 * at.depth
