"""Any config either validates, builds and takes one step with a finite loss, or is refused with one message."""

import copy

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from depthkit import config as c
from depthkit.model import ModelConfig, Transformer, account
from depthkit.model.placement import PLACEMENTS
from depthkit.model.registries import FFNS, INITS, NORMS, REGULATORS, STREAMS
from tests.models import make_ids

ODD = [None, -1, 0, 1, 3, "x", 1.5, True, [], {}, {"kind": "nope"}, "rms", ["lns"], float("inf")]


@st.composite
def mixers(draw):
    kv_heads = draw(st.integers(1, 3))
    return {
        "kind": "gqa",
        "num_heads": kv_heads * draw(st.integers(1, 2)),
        "num_kv_heads": kv_heads,
        "head_dim": 2 * draw(st.integers(1, 4)),
        "qk_norm": draw(st.booleans()),
        "window": draw(st.none() | st.integers(1, 8)),
        "causal": draw(st.booleans()),
        "backend": draw(st.sampled_from(["auto", "eager", "sdpa"])),
    }


placements = st.sampled_from(sorted(PLACEMENTS)) | st.lists(st.integers(0, 1), min_size=3, max_size=3)
norms = st.sampled_from(NORMS.names())
regulators = st.lists(st.sampled_from(REGULATORS.names()), max_size=3)
ffns = st.sampled_from(FFNS.names()) | st.fixed_dictionaries(
    {"kind": st.sampled_from(FFNS.names()), "hidden_dim": st.integers(1, 20)}
)
blocks = st.fixed_dictionaries({"mixer": mixers(), "ffn": ffns})


def segments(name):
    return st.fixed_dictionaries(
        {
            "name": st.just(name),
            "pattern": st.lists(st.sampled_from("xy"), min_size=1, max_size=2),
            "repeat": st.integers(1, 2),
            "loops": st.integers(1, 3),
        },
        optional={"placement": placements, "norm": norms, "regulators": regulators},
    )


models = st.fixed_dictionaries(
    {
        # A layer norm of one channel is zero; a stack of norms then multiplies gradients by 1/sqrt(eps) each.
        "dim": st.integers(2, 20),
        "vocab_size": st.just(31),
        "blocks": st.fixed_dictionaries({"x": blocks, "y": blocks}),
        "segments": st.tuples(segments("a"), segments("b")).map(list),
        "final_norm": norms | st.booleans(),
        "embed_norm": norms | st.booleans(),
        "placement": placements,
        "norm": norms,
        "regulators": regulators,
        "embedding_std": st.floats(0.01, 1.0),
        "init": st.sampled_from(INITS.names()),
        "stream": st.sampled_from(STREAMS.names()),
        "head": st.fixed_dictionaries(
            {"kind": st.just("lm"), "tied": st.booleans(), "z_loss": st.floats(0, 0.01)}
        ),
    }
)
fuzz = settings(deadline=None, suppress_health_check=list(HealthCheck))
fixed = settings(fuzz, derandomize=True)  # the slow ones look further, elsewhere each time


REFUSALS = (
    "does not work",
    "works under placement",
    "needs a norm",
    "works without a norm",
    "no sum to normalise",
    "; use exact",
)
"""How components say that they do not go together."""


def composed(raw):
    """The config, unless its components declare that they do not go together: then another is drawn."""
    try:
        return c.validate(ModelConfig, raw, "fuzz.yaml")
    except c.ConfigError as error:
        assert any(refusal in str(error) for refusal in REFUSALS), error
        assume(False)


def takes_a_step(config):
    config = config.model_copy(update={"vocab_size": config.vocab_size or 31})  # null: the tokenizer's
    net, ids = Transformer(config), make_ids(1, 5, config.vocab_size)
    optimizer = torch.optim.SGD(net.parameters(), 1e-6)
    net(ids, ids).loss.backward()
    optimizer.step()
    assert torch.isfinite(net(ids, ids).loss)
    assert account(config, 5).stored == sum(p.numel() for p in net.parameters())


def sensible(raw):
    config = composed(raw)
    takes_a_step(config)
    assert c.fingerprint(c.validate(ModelConfig, c.to_dict(config), "again")) == c.fingerprint(config)


test_sensible_configs_validate_train_and_read_back = settings(fixed, max_examples=20)(given(models)(sensible))
test_many_sensible_configs = pytest.mark.slow(settings(fuzz, max_examples=200)(given(models)(sensible)))


def places(node, path=()):
    """Every (path, key) in a nested mapping or list."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def one_wrong_value(raw, data):
    raw = copy.deepcopy(raw)
    *path, key = data.draw(st.sampled_from(list(places(raw))))
    node = raw
    for part in path:
        node = node[part]
    if isinstance(key, str) and data.draw(st.booleans()):
        node[key + "s"] = node.pop(key)
    else:
        node[key] = data.draw(st.sampled_from(ODD))
    try:
        config = c.validate(ModelConfig, raw, "fuzz.yaml")
    except c.ConfigError as error:
        assert str(error).startswith("fuzz.yaml: ")
        assert "pydantic" not in str(error)
    else:
        takes_a_step(config)


wrong = given(models, st.data())
test_one_wrong_value_is_refused_in_one_message_or_does_no_harm = settings(fixed, max_examples=60)(
    wrong(one_wrong_value)
)
test_many_wrong_values = pytest.mark.slow(settings(fuzz, max_examples=600)(wrong(one_wrong_value)))
