def site(at):
    return 1, at.learned["table.gain"][at.index, at.branch], 1
