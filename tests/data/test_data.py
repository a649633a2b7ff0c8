import json
import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import numpy as np
import pytest
import torch

from depthkit.data import CORPORA, store

BOOKS = {"kind": "kjv", "held_out": ["Ruth", "Jude"]}
BPE = {"kind": "bpe", "vocab_size": 280, "train_bytes": 20_000}


def take(batches, count):
    found = list(islice(batches, count))
    batches.close()
    return found


def same(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a.ids, b.ids)
        assert torch.equal(a.targets, b.targets)
        assert (a.documents is None) == (b.documents is None)
        assert a.documents is None or torch.equal(a.documents, b.documents)
        assert a.num_bytes == b.num_bytes


def held_out(data):
    return data._splits.validation.store.tokens


@pytest.mark.parametrize("tokenizer", ["bytes", BPE], ids=["bytes", "bpe"])
@pytest.mark.parametrize("sequence_length", [16, 100])
def test_each_held_out_token_is_scored_once(opened, jsonl, words, tokenizer, sequence_length):
    corpus = {"kind": "files", "paths": [jsonl(words)], "validation_fraction": 0.3}
    data = opened(corpus, tokenizer, sequence_length=sequence_length)
    batches = list(data.validation(7))
    scored = torch.cat([b.targets[b.targets != -100] for b in batches])
    assert scored.tolist() == held_out(data)[1:].tolist()
    assert sum(b.num_scored for b in batches) == len(held_out(data)) - 1


@pytest.mark.parametrize("tokenizer", ["bytes", BPE], ids=["bytes", "bpe"])
def test_the_bytes_of_the_scored_tokens_are_the_bytes_of_the_text(opened, tokenizer):
    data = opened(BOOKS, tokenizer)
    ruth = list(open_corpus(BOOKS).texts("validation"))
    assert sum(b.num_bytes for b in data.validation(5)) == sum(len(text.encode()) for text in ruth)


def open_corpus(fields):
    config = CORPORA.get(fields["kind"]).Config.model_validate(fields)
    return config.component(config)


def test_padding_is_unscored_and_alone(opened):
    last = list(opened(BOOKS, sequence_length=1000, document_mask=True).validation(4))[-1]
    padded = last.targets[-1] == -100
    assert 0 < padded.sum() < 1000
    assert (last.ids[-1, 1:][padded[:-1]] == 0).all()
    assert (last.documents[-1, 1:][padded[:-1]] == -1).all()


@pytest.mark.parametrize("max_tokens", [1, 16, 100, 5000, 10**9])
def test_a_limited_validation_scores_no_token_twice(opened, max_tokens):
    data = opened(BOOKS)
    marked = [row for b in data.validation(3, max_tokens) for row in b.ids.tolist()]
    windows = [tuple(row) for b in data.validation(3) for row in b.ids.tolist()]
    assert not Counter(map(tuple, marked)) - Counter(windows)
    scored = sum(b.num_scored for b in data.validation(3, max_tokens))
    assert scored == min(len(held_out(data)) - 1, max(16, max_tokens // 16 * 16))


def test_a_limited_validation_is_spread_over_the_text(opened):
    data = opened(BOOKS)
    everything = list(data.validation(1))
    first_half, second_half = everything[: len(everything) // 2], everything[len(everything) // 2 :]
    chosen = [b.ids.tolist() for b in data.validation(1, 160)]
    assert sum(ids in [b.ids.tolist() for b in first_half] for ids in chosen) == 5
    assert sum(ids in [b.ids.tolist() for b in second_half] for ids in chosen) == 5


def test_training_windows_are_text_in_another_order(opened):
    data = opened(BOOKS, sequence_length=64)
    batch = take(data.train(4), 1)[0]
    assert batch.ids.shape == (4, 64)
    assert torch.equal(batch.ids[:, 1:], batch.targets[:, :-1])
    text = "\n".join(open_corpus(BOOKS).texts("train"))
    pieces = [data.tokenizer.decode(row[row != 256].tolist()) for row in batch.ids]
    assert any(piece in text for piece in pieces)
    assert batch.num_bytes == int((batch.targets < 256).sum())


def small(opened, jsonl, words, **fields):
    """Some 60 windows an epoch, so that a few batches cross into the next."""
    return opened({"kind": "files", "paths": [jsonl(words)]}, sequence_length=64, **fields)


def test_an_epoch_shows_every_training_window_once(opened, jsonl, words):
    data = small(opened, jsonl, words)
    count = (data.summary()["train_tokens"] - 1) // 64
    shown = [tuple(b.ids[0].tolist()) for b in take(data.train(1), 2 * count)]
    assert Counter(shown[:count]) == Counter(shown[count:])
    assert shown[:count] != shown[count:]


@pytest.mark.parametrize("start", [1, 7, 19, 40])
def test_resuming_gives_the_tail(opened, jsonl, words, start):
    data = small(opened, jsonl, words, document_mask=True)
    windows = (data.summary()["train_tokens"] - 1) // 64
    assert 3 * 19 < windows < 3 * (19 + 5) < 3 * 40  # one start crosses into the second epoch, one is past it
    whole = take(data.train(3), start + 5)
    same(take(small(opened, jsonl, words, document_mask=True).train(3, start=start), 5), whole[start:])


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than a small machine has
def test_workers_do_not_change_the_batches(opened, jsonl, words):
    alone = take(small(opened, jsonl, words, document_mask=True).train(3), 30)
    for workers in (1, 3):
        data = small(opened, jsonl, words, document_mask=True, num_workers=workers)
        same(take(data.train(3), 30), alone)
        same(take(data.train(3, start=21), 9), alone[21:])


def test_seeds_differ_and_batch_sizes_regroup(opened):
    first = take(opened(BOOKS, seed=1).train(6), 1)[0]
    assert not torch.equal(first.ids, take(opened(BOOKS, seed=2).train(6), 1)[0].ids)
    halves = take(opened(BOOKS, seed=1).train(3), 2)
    assert torch.equal(first.ids, torch.cat([b.ids for b in halves]))


@pytest.mark.parametrize("workers", [0, 1])
def test_loading_leaves_the_global_random_state_alone(opened, workers):
    data = opened(BOOKS, num_workers=workers)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    take(data.train(2), 3)
    list(data.validation(2, 100))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_saved_state_is_json_and_resumes(opened):
    data = opened(BOOKS)
    batches = data.train(2)
    for _ in range(3):
        next(batches)
    state = json.loads(json.dumps(data.state(3)))
    expected = next(batches)
    same([next(opened(BOOKS).train(2, start=3, state=state))], [expected])


def test_a_state_of_other_data_is_refused(opened, jsonl, words):
    first, second = ({"kind": "files", "paths": [jsonl(w, f"{len(w)}.jsonl")]} for w in (words, words[:50]))
    state = opened(first).state(0)
    with pytest.raises(ValueError, match=r"data.train: differs"):
        opened(second).train(2, state=state)
    with pytest.raises(ValueError, match=r"data.tokenizer: differs"):
        opened(first, BPE).train(2, state=state)


def test_a_state_of_another_position_is_refused(opened):
    data = opened(BOOKS)
    next(data.train(2))
    with pytest.raises(ValueError, match="micro-batch 1 of 2 sequences, not 2 of 2"):
        data.train(2, start=2, state=data.state(1))
    with pytest.raises(ValueError, match="not 1 of 4"):
        data.train(4, start=1, state=data.state(1))


@pytest.mark.parametrize(("batch_size", "start"), [(0, 0), (-1, 0), (2, -1)])
def test_sizes_out_of_range_are_refused(opened, batch_size, start):
    with pytest.raises(ValueError, match="at least"):
        opened(BOOKS).train(batch_size, start)


def test_validation_sizes_out_of_range_are_refused(opened):
    with pytest.raises(ValueError, match="at least 1"):
        opened(BOOKS).validation(0)
    with pytest.raises(ValueError, match="at least 1"):
        opened(BOOKS).validation(1, 0)


def test_document_numbers_change_at_bos(opened):
    batch = take(opened(BOOKS, sequence_length=256, document_mask=True).train(64), 1)[0]
    opens = batch.ids == 256
    assert opens[:, 1:].any()
    steps = batch.documents[:, 1:] - batch.documents[:, :-1]
    assert torch.equal(steps, opens[:, 1:].long())
    assert (batch.documents[:, 0] == 0).all()


def test_unigram_entropy_against_the_definition(opened):
    data = opened(BOOKS)
    counts = Counter(held_out(data)[1:].tolist())
    total = sum(counts.values())
    expected = -sum(n / total * math.log(n / total) for n in counts.values())
    assert data.unigram_entropy() == pytest.approx(expected, rel=1e-12)
    assert 2.5 < data.unigram_entropy() < 3.5


def test_the_summary_counts(opened):
    data = opened(BOOKS)
    summary = data.summary()
    chapters = {split: list(open_corpus(BOOKS).texts(split)) for split in ("train", "validation")}
    for split, texts in chapters.items():
        assert summary[f"{split}_documents"] == len(texts)
        assert summary[f"{split}_tokens"] == sum(1 + len(text) for text in texts)
        assert len(summary[f"{split}_sha256"]) == 64
    assert summary["vocab_size"] == 257
    assert summary == opened(BOOKS).summary()


def test_the_cache_is_used_and_rebuilt(opened, tmp_path, monkeypatch):
    before = opened(BOOKS).summary()
    monkeypatch.setattr("depthkit.data.tokenise.with_bos", None)  # tokenising again would fail
    assert opened(BOOKS).summary() == before
    (store,) = [path for path in (tmp_path / "cache" / "tokens").iterdir() if path.is_dir()]
    (store / "train.ids").write_bytes(b"")
    with pytest.raises(ValueError, match="damaged token cache"):
        opened(BOOKS)


def test_processes_that_open_at_once_share_one_store(opened, monkeypatch):
    writes, write = [], store.write
    monkeypatch.setattr(store, "write", lambda *args: (writes.append(args), write(*args)))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: opened(BOOKS).summary()["train_sha256"], range(4)))
    assert len(set(found)) == 1
    assert len(writes) == 1


def test_targets_are_int64_whatever_is_stored(opened):
    batch = next(opened(BOOKS).train(2))
    assert batch.targets.dtype == torch.int64
    assert np.asarray(held_out(opened(BOOKS))).dtype == np.uint16
