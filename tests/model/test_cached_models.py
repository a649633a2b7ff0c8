"""Whole models with a cache: equal to the plain forward, and to a cache that states the rule of loops outright."""

import pytest
import torch

from depthkit.model.cache import Cache
from tests.models import make_ids, make_model, redraw


def looped(**segment):
    """Prelude, a looped core of two layers, coda."""
    plain = {"pattern": ["dense"]}
    core = {"name": "core", **plain, "repeat": 2, "loops": 3, **segment}
    return {"segments": [{"name": "prelude", **plain}, core, {"name": "coda", **plain}]}


MIXER = {"kind": "gqa", "num_heads": 4, "num_kv_heads": 2}
MODELS = {
    "plain": {"depth": 3},
    "looped": looped(),
    "injected": looped(inject="add", carry="mean"),
    "gated": looped(inject="gate", readout="weighted"),
    "sandwich": {**looped(), "placement": "sandwich", "embed_norm": True},
    "post": {**looped(), "placement": "post", "final_norm": False},
    "regulated": {**looped(), "regulators": ["lns"]},
    **{
        stream: {**looped(), "stream": stream}
        for stream in ("embedding_skip", "hyper", "mhc", "attention_residual")
    },
    **{norm: {**looped(), "norm": norm} for norm in ("layer", "dyt", "derf", "bhyt")},
    "window": {**looped(), "blocks": {"dense": {"mixer": {**MIXER, "window": 3}}}},
    "qk-norm": {**looped(), "blocks": {"dense": {"mixer": {**MIXER, "qk_norm": True}}}},
}
CHANGES = {
    "fewer loops later": [(5, 3), (1, 1), (1, 1), (2, 2)],
    "more loops later": [(5, 1), (1, 3), (3, 2)],
    "down and up": [(4, 2), (2, 1), (1, 3), (2, 3)],
}


class OutrightCache:
    """Every key of every position in a dictionary; read by the rule: loop min(t, loops of the position - 1)."""

    def __init__(self):
        self.entries, self.loops, self.length = {}, {}, 0

    def slot(self, key):
        return OutrightSlot(self, key)


class OutrightSlot:
    def __init__(self, cache, key):
        self.cache, self.key = cache, key

    def before(self, time):
        return self.cache.length

    def append(self, k, v):
        """One position at a time, so that every position's number of loops is known when it is read."""
        assert k.shape[2] == 1
        segment, loop, slot = self.key
        entries, loops, now = self.cache.entries, self.cache.loops, self.cache.length
        entries[segment, slot, now, loop] = k, v
        loops[segment, now] = loop + 1
        sources = [entries[segment, slot, p, min(loop, loops[segment, p] - 1)] for p in range(now + 1)]
        keys, values = (torch.cat(part, 2) for part in zip(*sources, strict=True))
        return keys, values


@torch.no_grad()
def decode(model, ids, calls, cache):
    """`calls` of (positions, loops of the core or None) one after the other."""
    out, start = [], 0
    for time, loops in calls:
        chunk = ids[:, start : start + time]
        loops = None if loops is None else {"core": loops}
        out.append(model(chunk, loops=loops, cache=cache).hidden)
        start += time
        if isinstance(cache, OutrightCache):
            cache.length = start
        assert cache.length == start
    return torch.cat(out, 1)


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_cached_equals_the_plain_forward(name):
    model, ids = redraw(make_model(**MODELS[name])), make_ids(2, 9)
    with torch.no_grad():
        expected = model(ids).hidden
    close(decode(model, ids, [(5, None), (1, None), (1, None), (2, None)], Cache()), expected)


@pytest.mark.parametrize("calls", CHANGES.values(), ids=list(CHANGES))
@pytest.mark.parametrize("name", [name for name in MODELS if name != "plain"])
def test_with_other_loop_counts_later_it_equals_the_rule_stated_outright(name, calls):
    model, ids = redraw(make_model(**MODELS[name])), make_ids(2, 9)
    one_by_one = [(1, loops) for time, loops in calls for _ in range(time)]
    expected = decode(model, ids, one_by_one, OutrightCache())
    close(decode(model, ids, calls, Cache()), expected)
