"""What a dry run would have to fetch."""

import pytest

from depthkit.data import DataConfig
from depthkit.data.remote import remote


@pytest.mark.parametrize(
    ("corpus", "expected"),
    [
        ({"kind": "kjv"}, []),
        ({"kind": "hub", "name": "allenai/c4"}, ["corpus allenai/c4"]),
        ({"kind": "hub", "name": "imdb"}, ["corpus imdb"]),
        ({"kind": "hub", "name": "json", "data_files": ["a.jsonl"]}, []),
        ({"kind": "hub", "name": "json", "data_files": ["https://host/a.jsonl"]}, ["corpus json"]),
        ({"kind": "hub", "name": "."}, []),  # a folder
    ],
)
def test_a_corpus_says_whether_it_has_to_be_fetched(corpus, expected):
    assert remote(DataConfig.model_validate({"corpus": corpus})) == expected


def test_a_tokenizer_does_too():
    config = DataConfig.model_validate({"corpus": "kjv", "tokenizer": {"kind": "hub", "name": "a/b"}})
    assert remote(config) == ["tokenizer a/b"]
