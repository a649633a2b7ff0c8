from math import log


def exponent(at, kind):
    one, relative, logarithm = at.learned[kind][at.branch]
    return one + relative * at.l / at.L + logarithm * log(at.l) / log(at.L)


def site(at):
    return exponent(at, "read").exp() * at.learned["g"], exponent(at, "write").exp(), 1


def outer(at):
    return {"final": at.learned["final"].exp() * at.learned["g"]}
