VARIANTS = [{"index": "stored", "initial": 0.5}]


def site(at):
    return 1, at.learned["table.gain"][at.l - 1, at.branch], 1
