"""The attention probe against a softmax written out query by query, and what other models must show."""

import math

import numpy as np
import pytest
import torch

from depthkit.model.compile import compile_blocks
from depthkit.utilization import Sequences, evaluate
from depthkit.utilization.sequences import IGNORED
from tests.models import make_model, redraw
from tests.utilization.families import family
from tests.utilization.models import tokens

NAMES = ("attention_entropy", "attention_sparsity", "attention_sink", "attention_distance")
EPS = 0.05
PROBE = {"kind": "attention", "eps": EPS}


def build(depth=2, **mixer):
    kind = {"kind": "gqa", "num_heads": 4, "num_kv_heads": 2, **mixer}
    model = make_model(depth=depth, blocks={"dense": {"mixer": kind, "ffn": "gelu"}})
    redraw(model, std=0.6)
    return model.eval()


def normed(x, gain, eps=1e-6):
    return x / math.sqrt((x**2).mean() + eps) * gain


def turned(x, position, base=1e4):
    """Channel i and i + C/2 are one complex number, turned by position base^(-2i/C)."""
    half = len(x) // 2
    turn = np.exp(1j * position * base ** (-np.arange(half) / half))
    z = (x[:half] + 1j * x[half:]) * turn
    return np.concatenate([z.real, z.imag])


def visible(query, documents, mixer):
    """The keys that a query sees."""
    window, causal = mixer.get("window") or 10**6, mixer.get("causal", True)
    near = [k for k in range(len(documents)) if abs(query - k) < window and (k <= query or not causal)]
    return [k for k in near if documents[k] == documents[query]]


def weights_of(layer, states, documents, mixer):
    """Attention of one sequence `[T, D]` in layer `layer`: a list over heads of `{query: {key: probability}}`."""
    branch, gain = layer.mixer.branch, layer.mixer.before.weight
    h = [normed(x, gain.double().numpy()) for x in states]
    w = {name: getattr(branch, name).weight.double().numpy() for name in ("q", "k")}
    width, heads, found = branch.head_dim, 4, []
    for head in range(heads):
        parts = {"q": head, "k": head // (heads // 2)}
        rows = {name: [w[name][i * width : (i + 1) * width] @ x for x in h] for name, i in parts.items()}
        if mixer.get("qk_norm"):
            gains = {n: getattr(branch, f"{n}_norm").weight.double().numpy() for n in ("q", "k")}
            rows = {name: [normed(x, gains[name]) for x in row] for name, row in rows.items()}
        q, k = ([turned(x, p) for p, x in enumerate(rows[name])] for name in ("q", "k"))
        scale = width ** -mixer.get("scale_power", 0.5)
        head_found = {}
        for query in range(len(h)):
            keys = visible(query, documents, mixer)
            scores = np.exp([scale * float(q[query] @ k[key]) for key in keys])
            head_found[query] = dict(zip(keys, scores / scores.sum(), strict=True))
        found.append(head_found)
    return found


def query_values(query, row):
    """Every metric of one query of one head, None where undefined."""
    p = np.array(list(row.values()))
    entropy = -(p * np.log(p)).sum() / math.log(len(p)) if len(p) > 1 else None
    distance = sum(value * abs(query - key) for key, value in row.items())
    return dict(zip(NAMES, (entropy, (p < EPS).mean(), row.get(0), distance), strict=True))


def heads_means(per_sequence, real):
    """Mean by metric and head over all real queries, token 0 included."""
    found = {name: [[] for _ in range(4)] for name in NAMES}
    for sequence, length in zip(per_sequence, real, strict=True):
        for head, rows in enumerate(sequence):
            for query in range(length):
                for name, value in query_values(query, rows[query]).items():
                    found[name][head] += [] if value is None else [value]
    return {name: [np.mean(values) for values in heads] for name, heads in found.items()}


@pytest.mark.parametrize(
    "mixer",
    [
        {},
        {"window": 3},
        {"qk_norm": True, "scale_power": 1.0},
        {"causal": False, "window": 4},
        {"backend": "flex"},
    ],
    ids=["plain", "window", "qk_norm", "both ways", "flex"],
)
@pytest.mark.parametrize("documents", [None, [[0] * 4 + [1] * 3, [0] + [1] * 6]], ids=["one", "documents"])
def test_against_a_softmax_written_out(mixer, documents):
    model, windows = build(**mixer), tokens(2, 7, vocab=31)
    numbers = None if documents is None else torch.tensor(documents)
    sequences = Sequences.of_targets(windows[:, :-1], windows[:, 1:], numbers)
    report = evaluate(model, sequences, [PROBE], batch_tokens=7)
    states = []
    with torch.no_grad():
        model(sequences.ids, documents=numbers, observe=lambda visit, before, after: states.append(before))
    for visit, before in enumerate(states):
        rows = before.double().numpy()
        ids = [[0] * 7] * 2 if documents is None else documents
        with torch.no_grad():
            found = [weights_of(model.layers[visit], rows[n], ids[n], mixer) for n in range(2)]
        for name, heads in heads_means(found, [7, 7]).items():
            np.testing.assert_allclose(report.arrays[f"{name}.by_head"][visit], heads, rtol=1e-4, atol=1e-6)
            assert report.per_visit(f"{name}.mean")[visit] == pytest.approx(
                np.mean(heads), rel=1e-4, abs=1e-6
            )
            assert report.per_visit(f"{name}.min_head")[visit] == pytest.approx(
                min(heads), rel=1e-4, abs=1e-6
            )
            assert report.per_visit(f"{name}.max_head")[visit] == pytest.approx(
                max(heads), rel=1e-4, abs=1e-6
            )
    assert report.content["timing"]["layer_evals"] == 2 + 2


@pytest.mark.parametrize("backend", ["eager", "sdpa", "flex"])
def test_the_mixers_probabilities_are_what_it_weights_values_with(backend):
    mixer = build(backend=backend, window=3, qk_norm=True).layers[0].mixer.branch
    h, documents = torch.randn(2, 7, 16), torch.tensor([[0] * 3 + [1] * 4, [2] * 7])
    with torch.no_grad():
        context = mixer.prepare(torch.zeros(2, 7, dtype=torch.int64), documents)
        weights, visible = mixer.probabilities(h, context, documents)
        values = mixer.v(h).unflatten(-1, (2, -1)).transpose(1, 2).repeat_interleave(2, dim=1)
        expected = mixer.o((weights @ values).transpose(1, 2).flatten(2))
        torch.testing.assert_close(mixer(h, context)[0], expected)
    assert torch.equal(weights > 0, visible[:, None].expand_as(weights))


def test_known_patterns():
    """Equal scores spread evenly; a window of one looks at itself alone."""
    model = build()
    for layer in model.layers:
        torch.nn.init.zeros_(layer.mixer.branch.q.weight)
    report = evaluate(model, tokens(3, 9, vocab=31), [PROBE])
    assert report.per_visit("attention_entropy.mean") == pytest.approx([1.0, 1.0])
    assert report.per_visit("attention_distance.mean") == pytest.approx([2.0, 2.0])  # mean of t / 2
    harmonic = np.mean([1 / (t + 1) for t in range(9)])
    assert report.per_visit("attention_sink.mean") == pytest.approx([harmonic] * 2)
    alone = evaluate(build(window=1), tokens(3, 9, vocab=31), [PROBE])
    assert alone.per_visit("attention_entropy.mean") == [None, None]
    assert alone.per_visit("attention_distance.mean") == [0.0, 0.0]
    assert alone.per_visit("attention_sink.mean_no_token0") == [None, None]


def test_padding_micro_batches_and_compiled_blocks_do_not_matter():
    windows, model = tokens(4, 8, vocab=31), build()
    ids, targets = windows[:, :-1], windows[:, 1:]
    plain = evaluate(model, Sequences.of_targets(ids, targets), [PROBE])
    pad = torch.zeros(4, 3, dtype=torch.int64)
    padded = Sequences.of_targets(torch.cat([ids, pad], 1), torch.cat([targets, pad + IGNORED], 1))
    other = evaluate(model, padded, [PROBE], batch_tokens=11)
    compile_blocks(model.layers, backend="eager")
    compiled = evaluate(model, Sequences.of_targets(ids, targets), [PROBE])
    assert "forward" in vars(model.layers[0])
    for name in plain.metrics:
        assert other.per_visit(name) == pytest.approx(plain.per_visit(name), rel=1e-5)
        assert compiled.per_visit(name) == plain.per_visit(name)


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2", "bloom", "deepseek_v3"])
def test_a_pretrained_model_that_gives_its_weights(name):
    model, windows = family(name, num_hidden_layers=2, n_layer=2), tokens(2, 9, vocab=97)
    if name != "bloom":  # has no other
        model.set_attn_implementation("eager")
    report = evaluate(model, windows, [PROBE])
    with torch.no_grad():
        given = model(windows[:, :-1], output_attentions=True, use_cache=False).attentions
    reach = 4 if name == "mistral" else 9
    for visit, weights in enumerate(given):
        keys = torch.arange(1, 10).clamp(max=reach)
        entropy = torch.special.entr(weights.double()).sum(-1)[:, :, 1:] / keys[1:].log()
        below = ((weights < EPS).sum(-1) - (9 - keys)) / keys
        sink = weights[:, :, :reach, 0]
        values = dict(zip(NAMES, (entropy, below, sink), strict=False))
        for metric, value in values.items():
            assert report.per_visit(f"{metric}.mean")[visit] == pytest.approx(
                float(value.double().mean()), rel=1e-5
            )


@pytest.mark.parametrize(
    ("name", "reason"),
    [("llama", "attn_implementation=eager"), ("gpt_oss", "sum to 0."), ("mistral", "sum to 2")],
)
def test_without_probabilities_there_is_a_reason_and_no_number(name, reason):
    model = family(name)
    if name == "mistral":  # as if heads were mixed after the softmax
        model.set_attn_implementation("eager")
        for layer in model.model.layers:
            layer.self_attn.register_forward_hook(lambda _, args, out: (out[0], 2 * out[1]))
    report = evaluate(model, tokens(vocab=97), [PROBE])
    (entry,) = report.content["skipped"]
    assert entry["metric"] == "attention"
    assert reason in entry["reason"]
    assert not report.metrics


def test_weights_that_look_ahead_are_refused():
    model = family("gpt2", num_hidden_layers=1, n_layer=1)
    model.set_attn_implementation("eager")
    model.transformer.h[0].attn.register_forward_hook(lambda _, args, out: (out[0], out[1].flip(-1)))
    report = evaluate(model, tokens(vocab=97), [PROBE])
    assert "later tokens" in report.content["skipped"][0]["reason"]


def test_one_token():
    report = evaluate(build(depth=1), tokens(1, 1, vocab=31), [PROBE])
    assert report.per_visit("attention_sink.mean") == [1.0]
    assert report.per_visit("attention_entropy.mean") == [None]
