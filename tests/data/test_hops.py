"""The pointer-chasing task against the rule as one would say it: read the pairs, follow the pointers."""

import itertools
import json
import math
from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from depthkit.data import CORPORA, DataConfig, open_data
from depthkit.data.order import generator
from depthkit.data.tasks import pointers
from depthkit.data.tasks.supply import TEST_STREAM
from depthkit.data.tokenizers.bytes import ByteTokenizer


def hops(**fields):
    return {"kind": "hops", "test_problems": 16, **fields}


@pytest.fixture
def task(opened):
    """The task opened with the tokenizer and length that it asks for."""

    def build(seed=0, num_workers=0, document_mask=False, **fields):
        more = {"num_workers": num_workers, "document_mask": document_mask}
        return opened(hops(**fields), None, seed, sequence_length=None, **more)

    return build


def take(batches, count):
    found = list(islice(batches, count))
    batches.close()
    return found


def same(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a.ids, b.ids)
        assert torch.equal(a.targets, b.targets)
        assert a.loops == b.loops


def read(ids, size):
    """What one sequence says, digit by digit: the function as a dict, and the places asked for."""
    told, asked = ids[:size], ids[size:]
    assert len(asked) == size
    assert all(0 <= token < size * size for token in told)
    assert all(size * size <= token < size * size + size for token in asked)
    return {token // size: token % size for token in told}, [token - size * size for token in asked]


def solve(ids, size, count):
    """The targets, by walking."""
    function, asked = read(ids, size)
    answers = []
    for place in asked:
        for _ in range(count):
            place = function[place]
        answers.append(size * size + place)
    return [-100] * size + answers


def ring(function):
    places = [0]
    while (following := function[places[-1]]) != 0:
        places.append(following)
    return places


def rings(batch, size):
    return [ring(read(ids, size)[0]) for ids in batch.ids.tolist()]


@settings(max_examples=40, deadline=None)
@given(size=st.integers(3, 11), count=st.integers(1, 30), seed=st.integers(0, 10**6), held_out=st.booleans())
def test_targets_are_where_the_pointers_lead(size, count, seed, held_out):
    problems = pointers.draw(np.random.default_rng(seed), 3, size, held_out)
    for ids, targets in zip(problems.ids().tolist(), problems.targets(count).tolist(), strict=True):
        assert targets == solve(ids, size, count)
        assert max(ids + targets) < pointers.vocab_size(size)
        function, asked = read(ids, size)
        assert sorted(asked) == sorted(function) == sorted(function.values()) == list(range(size))
        assert len(ring(function)) == size  # one cycle through all places
        assert pointers.is_held_out(ring(function)) == held_out


@pytest.mark.parametrize("size", [3, 5, 8])
def test_every_batch_of_a_run_is_solved_by_walking(task, size):
    data = task(size=size)
    assert data.tokenizer.vocab_size == size * size + size
    for batch in [*take(data.train(5), 4), *data.validation(7)]:
        assert batch.ids.shape[1] == 2 * size
        assert batch.ids.dtype == batch.targets.dtype == torch.int64
        for ids, targets in zip(batch.ids.tolist(), batch.targets.tolist(), strict=True):
            assert targets == solve(ids, size, batch.loops)
        assert batch.num_bytes == 0
        assert batch.documents is None


def test_the_hops_trained_on_are_equally_likely_and_no_others_come(task):
    drawn = Counter(batch.loops for batch in take(task(train_hops=[1, 3, 7]).train(1), 600))
    assert set(drawn) == {1, 3, 7}
    assert all(abs(count - 200) < 5 * math.sqrt(600 * 2 / 9) for count in drawn.values())


def test_the_config_tells_every_loop_count_to_come():
    config = CORPORA.get("hops").Config.model_validate(hops(train_hops=[7, 2], test_hops=[2, 4]))
    assert config.loops() == [2, 4, 7]


def test_the_hops_of_a_micro_batch_do_not_depend_on_its_size(task):
    small, large = take(task().train(2), 20), take(task().train(9), 20)
    assert [batch.loops for batch in small] == [batch.loops for batch in large]


@pytest.mark.parametrize("size", [3, 4, 5, 6, 8])
def test_the_split_of_all_cycles_has_both_sides(size):
    sides = Counter(map(pointers.is_held_out, ((0, *p) for p in itertools.permutations(range(1, size)))))
    total = math.factorial(size - 1)
    assert sides[True] == max(1, math.ceil(total / 10))
    assert sides[True] + sides[False] == total > sides[True]


@pytest.mark.parametrize("size", [9, 12])
def test_a_tenth_of_the_cycles_of_many_places_is_held_out(size):
    rng = np.random.default_rng(0)
    held_out = sum(pointers.is_held_out([0, *(1 + rng.permutation(size - 1))]) for _ in range(4000))
    assert abs(held_out - 400) < 5 * math.sqrt(4000 * 0.1 * 0.9)


@pytest.mark.parametrize("size", [3, 4, 6, 8])
def test_held_out_cycles_are_never_trained_on(task, size):
    """Small sizes run through all cycles many times over, so one that slipped through would be met."""
    data = task(size=size, test_problems=64)
    trained = {tuple(r) for batch in take(data.train(64), 60) for r in rings(batch, size)}
    tested = {tuple(r) for batch in data.validation(64) for r in rings(batch, size)}
    assert trained
    assert tested
    assert not trained & tested
    if size <= 6:
        assert len(trained) == math.factorial(size - 1) - max(1, math.ceil(math.factorial(size - 1) / 10))


@pytest.mark.parametrize("start", [0, 1, 7, 40])
def test_resuming_at_any_micro_batch_gives_the_tail(task, start):
    whole = take(task(seed=3).train(4), start + 3)
    same(take(task(seed=3).train(4, start=start), 3), whole[start:])
    data = task(seed=3)
    batches = data.train(4)
    take(batches, start) if start else None
    state = json.loads(json.dumps(data.state(start)))
    same(take(task(seed=3).train(4, start=start, state=state), 3), whole[start:])


def test_a_state_of_another_task_is_refused(task):
    state = task(train_hops=[1, 2]).state(0)
    with pytest.raises(ValueError, match=r"data.train: differs"):
        task(train_hops=[1, 3]).train(2, state=state)
    task(train_hops=[1, 2], test_hops=[9]).train(2, state=state)  # what is tested may change


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_workers_do_not_change_the_batches(task):
    alone = take(task().train(3), 12)
    same(take(task(num_workers=2).train(3), 12), alone)
    same(take(task(num_workers=1).train(3, start=5), 7), alone[5:])


def test_seeds_differ_in_training_and_agree_on_what_is_held_out(task):
    one, two = task(seed=1), task(seed=2)
    (first,), (second,) = take(one.train(64), 1), take(two.train(64), 1)
    assert not torch.equal(first.ids, second.ids)
    same(list(one.validation(8)), list(two.validation(8)))
    same(list(one.validation(8)), list(one.validation(8)))


def test_micro_batches_differ(task):
    batches = take(task().train(8), 50)
    assert len({tuple(row) for batch in batches for row in batch.ids.tolist()}) == 400


def test_held_out_problems_are_the_same_for_every_number_of_hops(task):
    asked = {}
    for batch in task(test_hops=[4, 1, 12]).validation(5):
        asked.setdefault(batch.loops, []).extend(batch.ids.tolist())
    assert list(asked) == [4, 1, 12]
    assert asked[4] == asked[1] == asked[12]
    assert len(asked[4]) == 16


@pytest.mark.parametrize(
    ("max_tokens", "problems"), [(None, 16), (1, 1), (2 * 8 * 3, 3), (49, 3), (10**9, 16)]
)
def test_a_limit_takes_the_first_problems_for_every_number_of_hops(task, max_tokens, problems):
    data = task(test_hops=[2, 5])
    found = list(data.validation(64, max_tokens))
    assert [batch.loops for batch in found] == [2, 5]
    assert [batch.num_scored for batch in found] == [8 * problems] * 2
    whole = list(data.validation(64))
    assert all(torch.equal(part.ids, all_.ids[:problems]) for part, all_ in zip(found, whole, strict=True))


def test_a_document_mask_takes_a_problem_for_a_document(task):
    for batch in [
        *take(task(document_mask=True).train(2), 1),
        next(iter(task(document_mask=True).validation(2))),
    ]:
        assert torch.equal(batch.documents, torch.zeros_like(batch.ids))
        assert batch.to("cpu").loops == batch.loops


@pytest.mark.parametrize("size", [3, 8])
def test_unigram_entropy_against_the_held_out_answers(task, size):
    data = task(size=size)
    counts = Counter(t for batch in data.validation(4) for t in batch.targets.flatten().tolist() if t >= 0)
    total = sum(counts.values())
    expected = -sum(n / total * math.log(n / total) for n in counts.values())
    assert data.unigram_entropy() == pytest.approx(expected, rel=1e-12)


def test_the_summary_knows_no_end_of_training_and_counts_what_is_held_out(task):
    summary = task(test_hops=[1, 2]).summary()
    assert summary["train_tokens"] is None
    assert (summary["validation_tokens"], summary["validation_documents"]) == (2 * 16 * 16, 2 * 16)
    assert summary == task(test_hops=[1, 2]).summary()
    assert summary["validation_sha256"] != task(test_problems=15).summary()["validation_sha256"]


def test_the_corpus_has_no_text_and_takes_no_other_tokenizer(tmp_path):
    config = CORPORA.get("hops").Config.model_validate({})
    corpus = config.component(config)
    with pytest.raises(ValueError, match="no tokenizer can be trained"):
        corpus.texts("train")
    with pytest.raises(ValueError, match=r"data.tokenizer: corpus hops needs 72 ids, not 257"):
        corpus.open(ByteTokenizer(ByteTokenizer.Config(), corpus, tmp_path), tmp_path)


def test_another_window_length_is_refused_after_validation_too(task):
    config = DataConfig.model_validate({"corpus": hops()}).model_copy(update={"sequence_length": 32})
    with pytest.raises(ValueError, match=r"data.sequence_length: .*size 8 has 16 tokens \(got 32\)"):
        open_data(config, 0)


def test_the_stream_of_the_test_set_is_no_stream_of_training():
    test = generator(*TEST_STREAM).integers(2**62, size=4)
    assert not any((generator(0, k).integers(2**62, size=4) == test).any() for k in range(200))
