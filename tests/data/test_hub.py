import json
from itertools import islice

import datasets
import pytest
import torch

from depthkit.data import streaming


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")


@pytest.fixture
def shards(jsonl, words):
    """Three files of twenty documents."""
    return [jsonl(words[20 * i : 20 * i + 20], f"shard{i}.jsonl") for i in range(3)]


def hub(shards, **fields):
    return {"kind": "hub", "name": "json", "data_files": shards, **fields}


def take(batches, count):
    found = list(islice(batches, count))
    batches.close()
    return found


def ids(batches):
    return [row for batch in batches for row in batch.ids.tolist()]


def decoded(data, tokens):
    return [data.tokenizer.decode(part) for part in split_at_bos(tokens)]


def split_at_bos(tokens):
    text = " ".join(map(str, tokens))
    return [[int(i) for i in part.split()] for part in text.split("256") if part.strip()]


def test_a_whole_data_set_is_split_and_reused(opened, shards, words, capfd):
    data = opened(hub(shards))
    summary = data.summary()
    assert (summary["train_documents"], summary["validation_documents"]) == (57, 3)
    both = [*data._splits.train.store.tokens.tolist(), *data._splits.validation.store.tokens.tolist()]
    assert sorted(decoded(data, both)) == sorted(words)
    assert opened(hub(shards)).summary() == summary
    assert capfd.readouterr() == ("", "")


def test_a_validation_split(opened, shards, words):
    data = opened(hub(shards, split="train[:40]", validation_split="train[40:]", validation_documents=5))
    assert data.summary()["train_documents"] == 40
    assert decoded(data, data._splits.validation.store.tokens.tolist()) == words[40:45]


def stream(shards, **fields):
    return hub(shards, streaming=True, validation_fraction=0.2, **fields)


def stretch(data, count=60):
    """The documents of a stretch of the stream of windows, in order; the last is cut short."""
    windows = ids(take(data.train(1), count))
    return decoded(data, [token for window in windows for token in window])[:-1]


def test_a_stream_shows_every_document_once_an_epoch(opened, shards, words):
    data = opened(stream(shards), sequence_length=64)
    held_out = set(decoded(data, data._splits.validation.store.tokens.tolist()))
    expected = set(words) - held_out
    shown = stretch(data, 130)
    count = len(expected)
    assert 0 < len(held_out) < 30
    assert len(shown) > 2 * count
    assert sorted(shown[:count]) == sorted(shown[count : 2 * count]) == sorted(expected)
    assert shown[:count] != shown[count : 2 * count]
    assert shown[:count] != [word for word in words if word in expected]


def test_the_seed_decides_the_order(opened, shards):
    orders = [tuple(stretch(opened(stream(shards), seed=seed))) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.parametrize("block", [1, 7, 1000])
@pytest.mark.parametrize("stop", [1, 12, 40])
def test_a_stream_resumes_from_its_state(opened, shards, monkeypatch, block, stop):
    """Inside a block, across blocks, across an epoch (which has about 33 batches), inside a document."""
    monkeypatch.setattr(streaming, "BLOCK", block)
    options = {"sequence_length": 32, "document_mask": True}
    first = opened(stream(shards), **options)
    batches = first.train(3)
    for _ in range(stop):
        next(batches)
    state = json.loads(json.dumps(first.state(stop)))
    expected = list(islice(batches, 50))
    second = opened(stream(shards), **options)
    resumed = second.train(3, start=stop, state=state)
    assert second.state(stop) == state
    for old, new in zip(expected, islice(resumed, 50), strict=False):
        assert torch.equal(old.ids, new.ids)
        assert torch.equal(old.targets, new.targets)
        assert torch.equal(old.documents, new.documents)
    assert second.state(stop + 50) == first.state(stop + 50)


def test_a_worker_reads_the_same_stream_and_knows_its_place(opened, shards):
    alone, worker = (opened(stream(shards), num_workers=n) for n in (0, 1))
    batches = [data.train(2) for data in (alone, worker)]
    for _ in range(20):
        one, other = (next(b) for b in batches)
        assert torch.equal(one.ids, other.ids)
    assert alone.state(20) == worker.state(20)
    assert alone.state(10) == worker.state(10)
    resumed = take(opened(stream(shards), num_workers=1).train(2, start=20, state=worker.state(20)), 3)
    assert ids(resumed) == ids(islice(batches[0], 3))


def test_more_workers_than_a_stream_can_use_warn(opened, shards):
    with pytest.warns(UserWarning, match="data.num_workers: a stream is read by 1 process, not 2"):
        take(opened(stream(shards), num_workers=2).train(2), 1)


def test_a_stream_cannot_start_late_without_its_state(opened, shards):
    data = opened(stream(shards))
    with pytest.raises(ValueError, match="micro-batch 3 only with the state"):
        data.train(2, start=3)
    take(data.train(2), 30)
    with pytest.raises(ValueError, match="state of micro-batch 3: the stream stands at 30"):
        data.state(3)


def test_a_stream_trains_a_tokenizer(opened, shards):
    data = opened(stream(shards), {"kind": "bpe", "vocab_size": 280, "train_bytes": 500})
    assert data.tokenizer.vocab_size == 280
    assert sum(b.num_bytes for b in data.validation(2)) > sum(b.num_scored for b in data.validation(2))
    assert data.summary()["train_tokens"] is None


def test_a_stream_without_training_documents_is_refused(opened, shards, tmp_path):
    (tmp_path / "blank.jsonl").write_text('{"text": ""}\n' * 3)
    with pytest.raises(ValueError, match="the stream has no training documents"):
        opened(stream([str(tmp_path / "blank.jsonl")]))


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"split": "trian"}, "cannot load 'json': .*trian"),
        ({"text_field": "txt"}, "unknown text_field 'txt'; did you mean 'text'"),
        ({"data_files": ["/nowhere/x.jsonl"]}, "cannot load 'json': .*x.jsonl"),
    ],
)
def test_what_cannot_be_loaded_is_named(opened, shards, streams, fields, match, capfd):
    with pytest.raises(ValueError, match=match):
        opened({**hub(shards, streaming=streams), **fields})
    assert capfd.readouterr() == ("", "")


def test_an_unreachable_name_is_refused(opened, monkeypatch):
    def unreachable(*_, **__):
        raise ConnectionError("Couldn't reach 'some/name' on the Hub\nmore")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(ValueError, match=r"data.corpus hub: cannot load 'some/name': Couldn't reach .* Hub$"):
        opened({"kind": "hub", "name": "some/name"})


def test_every_block_has_an_order_of_its_own(monkeypatch):
    monkeypatch.setattr(streaming, "BLOCK", 10)
    rows = datasets.Dataset.from_dict({"text": [str(i) for i in range(30)]}).to_iterable_dataset()
    stream = streaming.TextStream(rows, "here", "text", held_out=-1.0)
    shown = [int(text) for _, text in islice(stream.documents(0, streaming.Place()), 60)]
    orders = [[i % 10 for i in shown[at : at + 10]] for at in range(0, 60, 10)]
    assert [sorted(order) for order in orders] == [list(range(10))] * 6
    assert len({tuple(order) for order in orders}) == 6
