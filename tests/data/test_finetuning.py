"""The corpora `chat` and `instruct`, opened: what is scored, split, counted, kept and refused."""

import json
import math
from collections import Counter
from itertools import islice

import pytest
import torch
from torch.nn import functional as F

from depthkit.data import DataConfig
from depthkit.data.conversations.templates import PLAIN
from depthkit.utilization.options import EvalOptions
from tests.models import make_model, redraw

ANSWERS = [f"answer {i}" + " and more" * (i % 4) for i in range(40)]
RECORDS = [{"prompt": f"question {i}?", "response": answer} for i, answer in enumerate(ANSWERS)]


@pytest.fixture
def write(tmp_path):
    """Write records, one JSON object a line, and return a source for them."""

    def build(records, name="records.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return {"kind": "files", "paths": [str(path)]}

    return build


@pytest.fixture
def instruct(opened, write):
    """Open records as instructions, in windows that hold about two."""

    def build(records=RECORDS, seed=0, sequence_length=100, options=(), **corpus):
        source = {**write(records), **corpus.pop("source", {})}
        corpus = {"kind": "instruct", "source": source, "validation_fraction": 0.25, **corpus}
        return opened(corpus, seed=seed, sequence_length=sequence_length, **dict(options))

    return build


def responses(data, batches):
    """The scored text, cut at the end marks."""
    ids = [i for batch in batches for i in batch.targets[batch.targets != -100].tolist()]
    parts, part = [], []
    for i in ids:
        parts, part = ([*parts, part], []) if i == 256 else (parts, [*part, i])
    assert not part
    return [data.tokenizer.decode(part) for part in parts]


def take(batches, count):
    found = list(islice(batches, count))
    batches.close()
    return found


def epoch(data, batch_size=1):
    return take(data.train(batch_size), data.summary()["train_windows"] // batch_size)


def test_each_response_is_scored_once_on_one_side(instruct):
    data = instruct()
    trained, held_out = responses(data, epoch(data)), responses(data, data.validation(3))
    assert Counter(trained + held_out) == Counter(ANSWERS)
    assert len(held_out) == 10


def test_the_split_follows_its_seed_alone(instruct):
    first = responses(instruct(), instruct().validation(3))
    assert responses(instruct(seed=5), instruct(seed=5).validation(3)) == first
    other = instruct(validation_seed=1)
    assert set(responses(other, other.validation(3))) != set(first)


def test_validation_files_leave_all_else_for_training(instruct, write):
    held_out = write(RECORDS[:5], "validation.jsonl")["paths"]
    data = instruct(RECORDS[5:], source={"validation": held_out})
    assert sorted(responses(data, epoch(data))) == sorted(ANSWERS[5:])
    assert sorted(responses(data, data.validation(2))) == sorted(ANSWERS[:5])


def test_bytes_and_entropy_count_the_scored_tokens(instruct):
    data = instruct()
    batches = list(data.validation(4))
    texts = responses(data, batches)
    assert sum(batch.num_bytes for batch in batches) == sum(map(len, texts))
    assert sum(batch.num_scored for batch in batches) == sum(len(text) + 1 for text in texts)
    counts = Counter(i for text in texts for i in [*text.encode(), 256])
    shares = [count / counts.total() for count in counts.values()]
    assert data.unigram_entropy() == pytest.approx(-sum(p * math.log(p) for p in shares), rel=1e-12)


@pytest.mark.parametrize("most", [1, 40, 120, 10**6])
def test_a_limited_validation_scores_no_more_than_asked(instruct, most):
    batches = list(instruct().validation(2, most))
    assert 0 < sum(batch.num_scored for batch in batches) <= max(most, 40)


def test_documents_are_numbered_and_padding_is_alone(instruct):
    batch = next(instruct(options={"document_mask": True}).train(3))
    for ids, documents in zip(batch.ids.tolist(), batch.documents.tolist(), strict=True):
        text = [(i, d) for i, d in zip(ids, documents, strict=True) if d >= 0]
        assert [i for i, d in zip(ids, documents, strict=True) if d < 0] == [0] * (len(ids) - len(text))
        openings = [n for n, (i, _) in enumerate(text) if i == 256 and (not n or text[n - 1][0] == 256)]
        assert [text[n][1] for n in openings] == list(range(len(openings)))


@torch.no_grad()
def test_the_loss_is_that_of_the_responses_alone(instruct):
    """Each conversation run by itself, and the nats of its response added up from the log-softmax."""
    data = instruct(options={"document_mask": True})
    batch = next(data.train(2))
    model = redraw(make_model(vocab=257)).eval()
    nats, count = 0.0, 0
    by_number = {record["response"]: record["prompt"] for record in RECORDS}
    for answer in responses(data, [batch]):
        prompt = [256, *f"User:\n{by_number[answer]}\n\nAssistant:\n".encode()]
        response = [*answer.encode(), 256]
        ids = torch.tensor([prompt + response])
        logits = model.logits(model(ids[:, :-1]).hidden)[0, len(prompt) - 1 :]
        nats -= float(logits.log_softmax(-1).gather(1, torch.tensor(response)[:, None]).sum())
        count += len(response)
    output = model(batch.ids, batch.targets, batch.documents)
    assert batch.num_scored == count
    assert float(output.cross_entropy) == pytest.approx(nats / count, rel=1e-5)


def test_no_gradient_comes_from_a_prompt(instruct):
    batch = next(instruct(options={"document_mask": True}).train(2))
    model = redraw(make_model(vocab=257))
    hidden = model(batch.ids, documents=batch.documents).hidden.detach().requires_grad_()
    F.cross_entropy(model.logits(hidden).flatten(0, 1), batch.targets.flatten()).backward()
    scored = batch.targets != -100
    assert (hidden.grad[~scored] == 0).all()
    assert (hidden.grad[scored].abs().sum(-1) > 0).all()


def test_resuming_gives_the_tail_and_workers_change_nothing(instruct):
    whole = take(instruct(seed=3).train(3), 20)
    for start, workers in ((1, 0), (13, 0), (13, 1)):
        data = instruct(seed=3, options={"num_workers": workers})
        state = json.loads(json.dumps(data.state(start)))
        for batch, expected in zip(
            take(data.train(3, start, state), 5), whole[start : start + 5], strict=True
        ):
            assert torch.equal(batch.ids, expected.ids)
            assert torch.equal(batch.targets, expected.targets)


def test_a_state_with_another_mask_is_refused(opened, write):
    pairs = [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]
    talk = [{"role": role, "content": content} for role, content in pairs]
    records = [{"messages": [*talk, {"role": "assistant", "content": str(i)}]} for i in range(20)]

    def build(train_on):
        corpus = {"kind": "chat", "source": write(records), "train_on": train_on}
        return opened(corpus, sequence_length=100)

    assert set(responses(build("last"), epoch(build("last")))) < {str(i) for i in range(20)}
    assert set(responses(build("all"), epoch(build("all")))) > {"b", "d"}
    with pytest.raises(ValueError, match=r"data.train: differs"):
        build("last").train(1, state=build("all").state(0))


def test_the_cache_is_used(instruct, monkeypatch):
    before = instruct().summary()
    monkeypatch.setattr("depthkit.data.conversations.encoding.Encoder.encode", None)
    assert instruct().summary() == before


def test_another_template_is_another_store(instruct, tmp_path):
    path = tmp_path / "short.jinja"
    path.write_text(
        PLAIN.replace("message.role | capitalize", "message.role[:1] | upper").replace("Assistant", "A")
    )
    short = {"kind": "jinja", "path": str(path)}
    first, second = instruct().summary(), instruct(template=short).summary()
    spared = len("ser" + "ssistant") * len(RECORDS)
    tokens = [summary["train_tokens"] + summary["validation_tokens"] for summary in (first, second)]
    assert tokens[0] - tokens[1] == spared
    path.write_text(path.read_text().replace("A:", "A>").replace("}}:", "}}>"))
    assert instruct(template=short).summary()["train_sha256"] != second["train_sha256"]


def test_what_is_cut_and_left_out_is_counted(instruct, write):
    long = [{"prompt": "x" * 200, "response": "never seen"}, {"prompt": "why?", "response": "y" * 200}]
    source = {"validation": write(RECORDS[:3], "held_out.jsonl")["paths"]}
    with pytest.warns(
        UserWarning, match=r"1 of 42 train conversations are longer .* 100\) and cut .*; 1 more are"
    ):
        data = instruct(RECORDS + long, source=source)
    summary = data.summary()
    assert (summary["train_truncated"], summary["train_dropped"], summary["train_documents"]) == (1, 1, 42)
    assert (summary["validation_truncated"], summary["validation_dropped"]) == (0, 0)
    targets = torch.cat([batch.targets[batch.targets != -100] for batch in epoch(data)])
    assert (targets == ord("y")).sum() == 101 - len("\1User:\nwhy?\n\nAssistant:\n") + sum(
        "y" in a for a in ANSWERS
    )
    assert summary["train_scored"] == len(targets)


def test_nothing_that_fits_is_refused(instruct):
    with pytest.raises(ValueError, match=r"data.corpus: nothing can be scored: 0 of 30 train conversations"):
        instruct(sequence_length=20)


def test_system_and_input_are_optional_fields(instruct):
    records = [{**record, "system": "Be kind." if i % 2 else None, "context": "" if i % 3 else "Given."}
               for i, record in enumerate(RECORDS)]  # fmt: skip
    data = instruct(records, system_field="system", input_field="context")
    text = "".join(data.tokenizer.decode(row.tolist()) for batch in epoch(data) for row in batch.ids)
    text += "".join(data.tokenizer.decode(row.tolist()) for batch in data.validation(1) for row in batch.ids)
    assert text.count("System:\nBe kind.\n\nUser:\nquestion") == 20
    assert text.count("?\n\nGiven.\n\nAssistant:\n") == 14
    with pytest.raises(
        ValueError, match=r"row 0: no field 'sytem' .*system_field\); did you mean 'system'\?"
    ):
        instruct(records, system_field="sytem")


@pytest.mark.parametrize(
    ("record", "match"),
    [
        ({"promt": "a", "response": "b"}, r"records.jsonl: row 1: no field 'prompt' \(data.corpus.prompt_field\); did "
         r"you mean 'promt'\? It has: promt, response\."),
        ({"prompt": "a"}, r"row 1: no field 'response' .*It has: prompt\."),
        ({"prompt": "a", "response": " "}, "row 1, message 1: the response is empty"),
    ],
)  # fmt: skip
def test_bad_records_are_named(instruct, record, match):
    with pytest.raises(ValueError, match=match):
        instruct([RECORDS[0], record])


def test_text_files_hold_no_records(instruct, tmp_path):
    (tmp_path / "x.txt").write_text("text")
    with pytest.raises(ValueError, match=r"unknown format '.txt'.* Allowed: .jsonl, .parquet"):
        instruct(source={"paths": [str(tmp_path / "x.txt")]})


def test_token_ids_cannot_be_written_out(opened):
    with pytest.raises(ValueError, match=r"data.corpus.end: the tokenizer names neither"):
        opened({"kind": "instruct", "source": "kjv_books"}, {"kind": "ids", "vocab_size": 300})


def test_the_data_sets_of_the_library_and_a_trained_tokenizer(opened, write, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "hf")
    source = {
        "kind": "hub",
        "name": "json",
        "data_files": write(RECORDS)["paths"],
        "validation_split": "train[:4]",
    }
    data = opened(
        {"kind": "instruct", "source": source}, {"kind": "bpe", "vocab_size": 270}, sequence_length=90
    )
    scored = torch.cat([batch.targets[batch.targets != -100] for batch in data.validation(2)])
    texts = [data.tokenizer.decode(part) for part in cut(scored.tolist(), data.tokenizer.bos)]
    assert sorted(texts) == sorted(ANSWERS[:4])


def cut(ids, mark):
    ends = [n for n, i in enumerate(ids) if i == mark]
    return [ids[a:b] for a, b in zip([0, *(n + 1 for n in ends)], ends, strict=False)]


def test_the_packaged_questions(opened):
    source = {"kind": "kjv_books", "books": ["Ruth", "Jude"]}
    data = opened({"kind": "instruct", "source": source}, sequence_length=640)
    answers = Counter(responses(data, [*epoch(data), *data.validation(2)]))
    assert answers == {"Ruth": 85, "Jude": 25}
    with pytest.raises(ValueError, match=r"source.books: unknown book 'Rut'; did you mean 'Ruth'\?"):
        opened({"kind": "instruct", "source": {**source, "books": ["Rut"]}})


def test_an_evaluation_keeps_the_windows_of_the_run():
    corpus = {"kind": "instruct", "source": "kjv_books"}
    assert [DataConfig(corpus=corpus, sequence_length=n).sequence_length for n in (None, 640)] == [256, 640]
    options = EvalOptions().within(640, DataConfig(corpus=corpus, sequence_length=640).corpus)
    assert options.sequence_length is None
