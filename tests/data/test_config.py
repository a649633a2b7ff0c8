import pytest

from depthkit.config import ConfigError, to_dict, validate
from depthkit.data import CORPORA, TOKENIZERS, DataConfig
from depthkit.data.registries import SOURCES, TEMPLATES


def parse(raw):
    return validate(DataConfig, raw, "data")


def test_defaults_are_text_that_is_always_there():
    config = parse({})
    assert (config.corpus.kind, config.tokenizer.kind) == ("kjv", "bytes")
    assert (config.sequence_length, config.document_mask, config.num_workers) == (256, False, 0)


def test_every_kind_is_found_and_documented():
    assert CORPORA.names() == ["chat", "files", "hops", "hub", "instruct", "kjv", "tokens"]
    assert TOKENIZERS.names() == ["bpe", "bytes", "file", "hub", "ids"]
    assert SOURCES.names() == ["files", "hub", "kjv_books"]
    assert TEMPLATES.names() == ["jinja", "plain", "tokenizer"]
    for registry in (CORPORA, TOKENIZERS, SOURCES, TEMPLATES):
        for name in registry.names():
            component = registry.get(name)
            assert component.__doc__
            fields = component.Config.model_fields
            assert all(field.description for key, field in fields.items() if key != "kind")


def test_a_config_survives_its_own_dump():
    config = parse({"corpus": {"kind": "files", "paths": ["a/*.txt"]}, "tokenizer": {"kind": "bpe"}})
    assert parse(to_dict(config)) == config


@pytest.mark.parametrize("null", [{}, {"tokenizer": None, "sequence_length": None}])
@pytest.mark.parametrize("size", [3, 8, 11])
def test_what_follows_from_a_task_need_not_be_written(null, size):
    config = parse({"corpus": {"kind": "hops", "size": size}, **null})
    assert config.sequence_length == 2 * size
    assert (config.tokenizer.kind, config.tokenizer.vocab_size) == ("ids", size * size + size)
    assert parse(to_dict(config)) == config


def test_null_takes_the_defaults_for_text():
    assert parse({"tokenizer": None, "sequence_length": None}) == parse({})


@pytest.mark.parametrize(
    ("raw", "match"),
    [
        ({"corpus": "kvj"}, r"corpus: unknown corpus kind 'kvj'; did you mean 'kjv'\?"),
        ({"tokenizer": "byte"}, r"unknown tokenizer kind 'byte'; did you mean 'bytes'\?"),
        ({"corpus": {"kind": "files", "path": "x"}}, r"unknown key 'path'; did you mean 'paths'\?"),
        ({"corpus": {"kind": "files", "paths": []}}, "paths"),
        ({"corpus": {"kind": "files", "paths": ["x"], "validation_fraction": 1.0}}, "validation_fraction"),
        ({"corpus": {"kind": "tokens", "path": "x", "dtype": "float32"}}, "dtype"),
        ({"tokenizer": {"kind": "bpe", "vocab_size": 256}}, "vocab_size"),
        ({"sequence_lenght": 3}, r"did you mean 'sequence_length'\?"),
        ({"sequence_length": 0}, "sequence_length"),
        ({"sequence_length": "64"}, "sequence_length"),
        ({"num_workers": -1}, "num_workers"),
        ({"corpus": "hops", "sequence_length": 256}, "sequence_length: corpus hops needs 16; leave it out"),
        ({"corpus": "hops", "tokenizer": "bytes"}, "tokenizer: corpus hops needs .*72.*leave it out"),
        ({"corpus": "hop"}, r"unknown corpus kind 'hop'; did you mean 'hops'\?"),
        ({"corpus": {"kind": "hops", "size": 2}}, "corpus.size.*3"),
        ({"corpus": {"kind": "hops", "train_hops": []}}, "corpus.train_hops"),
        ({"corpus": {"kind": "hops", "test_hops": []}}, "corpus.test_hops"),
        ({"corpus": {"kind": "hops", "train_hops": [1, 0]}}, "corpus.train_hops.1"),
        ({"corpus": {"kind": "hops", "test_hops": [2, 2]}}, "corpus.test_hops: each .* once"),
        ({"corpus": {"kind": "hops", "test_problems": 0}}, "corpus.test_problems"),
        ({"corpus": {"kind": "hops", "hops": [1]}}, "unknown key 'hops'"),
        ({"corpus": "chat"}, r"corpus.source: Field required"),
        ({"corpus": {"kind": "chat", "source": "file"}}, r"corpus.source: unknown source kind 'file'"),
        (
            {"corpus": {"kind": "instruct", "source": "kjv_books", "template": "plane"}},
            "did you mean 'plain'",
        ),
        ({"corpus": {"kind": "chat", "source": "kjv_books", "train_on": "first"}}, "corpus.train_on"),
    ],
)
def test_mistakes_are_refused_in_one_message(raw, match):
    with pytest.raises(ConfigError, match=match):
        parse(raw)
