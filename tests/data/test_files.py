import json

import datasets
import pyarrow as pa
import pyarrow.parquet
import pytest

from depthkit.data import CORPORA, holding_out


def corpus(*paths, **fields):
    config = CORPORA.get("files").Config(paths=[str(p) for p in paths], **fields)
    return config.component(config)


def texts(source):
    return [list(source.texts(split)) for split in ("train", "validation")]


@pytest.fixture
def folder(tmp_path, words):
    (tmp_path / "b.txt").write_text(words[0])
    (tmp_path / "a.txt").write_text(words[1] + "\nsecond line\n")
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"text": w, "n": 1}) + "\n" for w in words[2:30]))
    table = pa.table({"text": words[30:], "n": list(range(len(words) - 30))})
    pyarrow.parquet.write_table(table, tmp_path / "d.parquet")
    return tmp_path


def test_all_formats_and_globs_in_a_fixed_order(folder, words):
    source = corpus(folder / "*.parquet", folder / "[ab].txt", folder / "**/c.jsonl", validation_fraction=0.1)
    everything = [words[1] + "\nsecond line\n", words[0], *words[2:]]
    train, validation = texts(source)
    assert sorted(train + validation) == sorted(everything)
    assert train == [text for text in everything if text in train]
    assert validation == [text for text in everything if text in validation]
    assert len(validation) == 6


def test_a_name_with_brackets_is_a_name(tmp_path):
    folder = tmp_path / "br[1]"
    folder.mkdir()
    for name in ("a[x].txt", "b.txt"):
        (folder / name).write_text(name)
    train, validation = texts(corpus(tmp_path / "br?1?" / "*.txt"))
    assert sorted(train + validation) == ["a[x].txt", "b.txt"]


def test_one_bad_file_among_several_is_named(opened, jsonl, words, tmp_path):
    jsonl(words)
    (tmp_path / "zz.jsonl").write_text("{]")
    with pytest.raises(ValueError, match=r"data.corpus: .*zz.jsonl: cannot be read"):
        opened({"kind": "files", "paths": [str(tmp_path / "*.jsonl")]})


def test_a_validation_file_leaves_all_else_for_training(folder, words):
    train, validation = texts(corpus(folder / "c.jsonl", validation=[str(folder / "d.parquet")]))
    assert (train, validation) == (words[2:30], words[30:])


def test_adding_documents_moves_few_others(jsonl, words):
    _, few = texts(corpus(jsonl(words[:40], "few.jsonl"), validation_fraction=0.2))
    _, many = texts(corpus(jsonl(words, "many.jsonl"), validation_fraction=0.2))
    assert len(few) == 8
    assert len(many) == 12
    assert len(set(few) - set(many)) <= 3


def test_copies_of_a_document_stay_on_one_side(jsonl, words):
    train, validation = texts(corpus(jsonl(words * 3), validation_fraction=0.2))
    assert len(train) + len(validation) == 180
    assert not set(train) & set(validation)


def test_a_separator_cuts_documents(tmp_path):
    path = tmp_path / "stories.txt"
    path.write_text("<|endoftext|>".join(f"story {i}" for i in range(20)))
    train, validation = texts(corpus(path, separator="<|endoftext|>"))
    assert sorted(train + validation) == sorted(f"story {i}" for i in range(20))
    assert len(validation) == 1


def test_another_text_field(jsonl, words):
    train, validation = texts(corpus(jsonl(words, field="body"), text_field="body"))
    assert sorted(train + validation) == sorted(words)


def test_the_fingerprint_follows_content_and_settings(tmp_path, jsonl, words):
    first = corpus(jsonl(words)).fingerprint
    assert corpus(jsonl(words, "elsewhere.jsonl")).fingerprint == first
    assert corpus(jsonl(words), validation_fraction=0.3).fingerprint != first
    assert corpus(jsonl(words), separator="x").fingerprint != first
    assert corpus(jsonl([*words[:-1], words[-1] + "!"])).fingerprint != first


def test_changed_files_are_tokenised_again(opened, jsonl, words):
    config = {"kind": "files", "paths": [jsonl(words)]}
    first = opened(config).summary()
    jsonl([*words, "one more document"])
    second = opened(config).summary()
    total = {s["train_documents"] + s["validation_documents"] for s in (first, second)}
    assert total == {60, 61}


def test_nothing_is_printed_and_nothing_left_changed(opened, folder, capfd):
    before = (datasets.is_progress_bar_enabled(), datasets.config.HF_UPDATE_DOWNLOAD_COUNTS)
    level = datasets.logging.get_verbosity()
    opened({"kind": "files", "paths": [str(folder / "*")]})
    assert capfd.readouterr() == ("", "")
    assert (datasets.is_progress_bar_enabled(), datasets.config.HF_UPDATE_DOWNLOAD_COUNTS) == before
    assert datasets.logging.get_verbosity() == level


BAD = {
    "missing": (None, "nothing.txt", "no file matches '.*nothing.txt'"),
    "empty": (b"", "x.txt", "x.txt is empty"),
    "binary": (b"text \xff\xfe\x00", "x.txt", "x.txt is binary or not UTF-8: byte 5"),
    "cut character": (b"caf\xc3", "x.txt", "x.txt is binary or not UTF-8: byte 3"),
    "utf-16": ("text".encode("utf-16-le"), "x.txt", "x.txt is binary: it holds a NUL character near byte 1"),
    "binary jsonl": (b'{"text": "\xff"}\n', "x.jsonl", "x.jsonl is binary or not UTF-8: byte 10"),
    "format": (b"a,b\n", "x.csv", r"x.csv: unknown format '.csv'.* Allowed: .jsonl, .parquet, .txt"),
    "single document": (b"only one document", "x.txt", "1 distinct documents cannot be split"),
    "not json": (b'{"text": "a"}\nnot json at all\n', "x.jsonl", "data.corpus: .*x.jsonl: cannot be read"),
    "no field": (b'{"txt": "a"}\n{"txt": "b"}\n', "x.jsonl", "unknown text_field 'text'; did you mean 'txt'"),
    "no text": (b'{"text": 1}\n{"text": 2}\n', "x.jsonl", "row 0: text_field 'text' holds int, not text"),
    "not parquet": (b"plain text\n", "x.parquet", "data.corpus: .*x.parquet: cannot load"),
    "too short": (
        b'{"text": "a"}\n{"text": "b"}\n',
        "x.jsonl",
        "2 training tokens are fewer than one window",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_named(opened, tmp_path, capfd, case):
    content, name, match = BAD[case]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=match):
        opened({"kind": "files", "paths": [str(tmp_path / name)]})
    assert capfd.readouterr() == ("", "")
    leftovers = [p for p in tmp_path.rglob("cache/**/*") if p.is_file() and p.suffix != ".lock"]
    assert [p for p in leftovers if case != "too short"] == []


def test_a_character_across_two_reads_is_text(opened, jsonl, words, monkeypatch):
    monkeypatch.setattr("depthkit.data.checking.CHUNK", 3)
    opened({"kind": "files", "paths": [jsonl(words)]})


def test_a_bad_byte_is_counted_across_reads(tmp_path, monkeypatch):
    monkeypatch.setattr("depthkit.data.checking.CHUNK", 4)
    (tmp_path / "x.txt").write_bytes(b"abc\xc3" + b"\xa9efg" + b"hi\xe2\x82" + b"xyz")
    with pytest.raises(ValueError, match="byte 10 is no text"):
        _ = corpus(tmp_path / "x.txt").fingerprint


def test_empty_documents_are_left_out(opened, jsonl, words):
    data = opened({"kind": "files", "paths": [jsonl(["", *words, ""])]})
    summary = data.summary()
    assert summary["train_documents"] + summary["validation_documents"] == len(words)


def test_the_place_of_a_text_is_pinned():
    """A change here moves documents between training and validation."""
    assert holding_out.place("a text") == pytest.approx(PLACE, abs=1e-12)


PLACE = 0.45021944816625137
