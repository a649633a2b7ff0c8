VARIANTS = [{"index": "stored"}]


def site(at):
    return 1, at.learned["table.gain"][at.l - 1, at.branch].diag(), 1
