"""Decoding with a cache against attention written out token by token, with any number of loops a position."""

import itertools

import pytest
import torch

from depthkit.model.cache import Cache, Slot
from depthkit.model.plan import Key
from depthkit.model.registries import MIXERS

DIM = 16
MIXER = {"num_heads": 4, "num_kv_heads": 2, "backend": "sdpa"}


def make_mixers(slots=2, **options):
    """The mixers of a small looped segment, with weights large enough that every visit matters."""
    config = MIXERS.get("gqa").Config(**(MIXER | options))
    mixers = [config.component(config, DIM) for _ in range(slots)]
    generator = torch.Generator().manual_seed(0)
    for parameter in itertools.chain(*(mixer.parameters() for mixer in mixers)):
        torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    return mixers


def unit(x):
    """The norm before a branch."""
    return x / x.square().mean(-1, keepdim=True).sqrt()


@torch.no_grad()
def run(mixers, x, loops, cache=None, start=0):
    """x `[B, T, D]` through the segment `loops` times, attention only."""
    ids = torch.zeros(x.shape[:2], dtype=torch.int64)
    for loop, (slot, mixer) in itertools.product(range(loops), enumerate(mixers)):
        ctx = mixer.prepare(ids, None, start=start)
        if cache is not None:
            ctx = mixer.with_cache(ctx, cache.slot(Key("core", loop, slot)))
        x = x + mixer(unit(x), ctx)[0]
    return x


def decode(mixers, x, calls, cache):
    """`calls` of (positions, loops) one after the other."""
    out = []
    for time, loops in calls:
        start = cache.length
        out.append(run(mixers, x[:, start : start + time], loops, cache, start))
    return torch.cat(out, dim=1)


def turned(x, position, base=1e4):
    half = x.shape[-1] // 2
    turn = position * base ** (-torch.arange(half) / half)
    z = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(turn), turn)
    return torch.cat([z.real, z.imag], -1)


def heads(mixer, name, h, position=None):
    """`[B, D] -> [B, heads, C]`, normalised and rotated as the mixer says."""
    x = getattr(mixer, name)(h).unflatten(-1, (-1, mixer.head_dim))
    if position is None:
        return x
    if mixer.config.qk_norm:
        x = getattr(mixer, f"{name}_norm")(x)
    return turned(x, position)


@torch.no_grad()
def reference(mixers, x, loops):
    """Position p goes through loops[p] loops; at loop t it sees position s as of loop min(t, loops[s] - 1)."""
    kept, out = {}, []
    for p, count in enumerate(loops):
        h = x[:, p]
        for loop, (slot, mixer) in itertools.product(range(count), enumerate(mixers)):
            read = unit(h)
            kept[p, loop, slot] = heads(mixer, "k", read, p), heads(mixer, "v", read)
            window = mixer.config.window or len(loops)
            sources = [kept[s, min(loop, loops[s] - 1), slot] for s in range(max(0, p - window + 1), p + 1)]
            keys, values = (
                torch.stack(part, 2).repeat_interleave(2, 1) for part in zip(*sources, strict=True)
            )
            scores = (heads(mixer, "q", read, p)[:, :, None] * keys).sum(-1) * mixer.head_dim**-0.5
            y = (scores.softmax(-1)[..., None] * values).sum(2)
            h = h + mixer.o(y.flatten(1))
        out.append(h)
    return torch.stack(out, 1)


CALLS = {
    "one loop count": [(5, 3), (1, 3), (1, 3), (2, 3)],
    "plain stack": [(5, 1), (1, 1), (3, 1)],
    "fewer loops later": [(5, 4), (1, 2), (1, 2), (2, 1)],
    "more loops later": [(5, 1), (1, 3), (1, 3), (2, 4)],
    "down and up": [(4, 2), (2, 4), (1, 1), (1, 3), (1, 4)],
    "token by token": [(1, 1 + n % 3) for n in range(9)],
}


@pytest.mark.parametrize("capacity", [0, 9])
@pytest.mark.parametrize("options", [{}, {"window": 3}, {"qk_norm": True}], ids=str)
@pytest.mark.parametrize("calls", CALLS.values(), ids=list(CALLS))
def test_cached_equals_every_position_with_its_own_number_of_loops(calls, options, capacity):
    mixers, x = make_mixers(**options), torch.randn(2, 9, DIM, generator=torch.Generator().manual_seed(1))
    loops = [count for time, count in calls for _ in range(time)]
    got = decode(mixers, x, calls, Cache(capacity))
    torch.testing.assert_close(got, reference(mixers, x, loops), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"window": 3}], ids=str)
def test_with_one_loop_count_cached_equals_the_plain_forward(options):
    mixers, x = make_mixers(**options), torch.randn(2, 9, DIM)
    got = decode(mixers, x, [(4, 3), (1, 3), (4, 3)], Cache())
    torch.testing.assert_close(got, run(mixers, x, 3), rtol=1e-5, atol=1e-5)


def test_sharing_the_last_loop_is_not_the_same_as_computing_more_loops():
    """The rule is a choice with an effect: the test above could not pass by ignoring it."""
    mixers, x = make_mixers(), torch.randn(1, 6, DIM)
    shared = decode(mixers, x, [(5, 1), (1, 3)], Cache())[:, -1]
    assert (shared - run(mixers, x, 3)[:, -1]).abs().max() > 1e-2


@pytest.mark.parametrize("name", ["eager", "flex"])
def test_other_backends_decode_alike(name):
    x = torch.randn(2, 7, DIM)
    calls = [(4, 2), (1, 3), (2, 1)]
    expected = decode(make_mixers(), x, calls, Cache())
    torch.testing.assert_close(
        decode(make_mixers(backend=name), x, calls, Cache()), expected, rtol=1e-5, atol=1e-5
    )


def test_documents_cover_cached_positions_too():
    """A second document that begins in the cache sees nothing of the first."""
    (mixer,) = make_mixers(1)
    ids, x = torch.zeros(1, 8, dtype=torch.int64), torch.randn(1, 8, DIM)
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])
    slot = Cache().slot(Key("core", 0, 0))
    with torch.no_grad():
        whole, _ = mixer(x, mixer.prepare(ids, documents))
        mixer(x[:, :5], mixer.with_cache(mixer.prepare(ids[:, :5], documents[:, :5]), slot))
        late, _ = mixer(x[:, 5:], mixer.with_cache(mixer.prepare(ids[:, 5:], documents, start=5), slot))
        alone, _ = mixer(x[:, 3:], mixer.prepare(ids[:, 3:], None))
    torch.testing.assert_close(late, whole[:, 5:], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(late, alone[:, 2:], rtol=1e-4, atol=1e-5)  # rope is relative
    with pytest.raises(
        ValueError, match=r"documents: shape \[1, 3\].*needs \[1, 8\], cached positions included"
    ):
        mixer.prepare(ids[:, 5:], documents[:, 5:], start=5)


def test_a_start_that_is_not_where_the_cache_ends_is_refused():
    mixers, x, cache = make_mixers(), torch.randn(1, 4, DIM), Cache()
    run(mixers, x, 2, cache)
    with pytest.raises(
        ValueError, match=r"start: 0, but the cache holds 4 positions; take start=cache\.length"
    ):
        run(mixers, x, 2, cache, start=0)
    run(mixers, x, 2, cache, start=4)
    with pytest.raises(ValueError, match=r"start: 9, but the cache holds 8"):
        run(mixers, x, 2, cache, start=9)


def entry(value, time, batch=1):
    return torch.full((batch, 2, time, 4), float(value)), torch.full((batch, 2, time, 4), -float(value))


def test_a_slot_fills_what_it_never_saw_from_the_loop_before():
    cache = Cache()
    first, second, third = (cache.slot(Key("core", loop, 0)) for loop in range(3))
    first.append(*entry(10, 2))  # prompt: two positions, one loop
    for slot, value in ((first, 11), (second, 21), (third, 31)):  # one position, three loops
        keys, values = slot.append(*entry(value, 1))
    assert keys[0, 0, :, 0].tolist() == [10, 10, 31]
    assert values[0, 0, :, 0].tolist() == [-10, -10, -31]
    first.append(*entry(12, 1))  # one position, one loop
    for slot, value in ((first, 13), (second, 23), (third, 33)):
        keys, _ = slot.append(*entry(value, 1))
    assert keys[0, 0, :, 0].tolist() == [10, 10, 31, 12, 33]
    assert second.entries[0][0, 0, :, 0].tolist() == [10, 10, 21, 12, 23]
    assert cache.length == 5


def test_slots_of_other_segments_are_their_own():
    cache = Cache()
    cache.slot(Key("prelude", 0, 0)).append(*entry(1, 3))
    assert cache.slot(Key("coda", 0, 0)).length == 0
    assert cache.slot(Key("prelude", 0, 0)).length == 3


def test_a_preallocated_slot_does_not_move_and_a_full_one_doubles():
    slot = Slot(capacity=4)
    slot.append(*entry(1, 3))
    before, size = slot.entries[0].data_ptr(), slot.num_bytes
    slot.append(*entry(2, 1))
    assert slot.entries[0].data_ptr() == before
    slot.append(*entry(3, 1))
    assert slot.num_bytes == 2 * size
    assert slot.entries[0][0, 0, :, 0].tolist() == [1, 1, 1, 2, 3]


def test_bytes_are_those_of_all_slots():
    cache = Cache(capacity=8)
    assert cache.num_bytes == cache.length == 0
    for loop in range(3):
        cache.slot(Key("core", loop, 0)).append(*entry(1, 5, batch=2))
    assert cache.num_bytes == 3 * 2 * (2 * 2 * 8 * 4) * 4


def test_another_batch_gradients_and_attention_to_later_tokens_are_refused():
    slot = Slot()
    slot.append(*entry(1, 2))
    with pytest.raises(ValueError, match="holds 1 sequences and was given 3"):
        slot.append(*entry(1, 1, batch=3))
    with pytest.raises(ValueError, match=r"no gradient; use torch.no_grad"):
        Slot().append(*(x.requires_grad_() for x in entry(1, 1)))
    (mixer,) = make_mixers(1, causal=False)
    with pytest.raises(ValueError, match=r"mixer.causal: false has no cache"):
        mixer.with_cache(mixer.prepare(torch.zeros(1, 2, dtype=torch.int64), None), slot)
