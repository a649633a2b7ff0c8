"""Conversations to ids: expected ids are written out by hand, or come from the transformers library."""

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from depthkit.data import TOKENIZERS
from depthkit.data.conversations.encoding import Encoder, end_of
from depthkit.data.conversations.messages import checked
from depthkit.data.conversations.templates import PLAIN

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<|im_end|>' }}"
    "{% endgeneration %}{{ '\n' }}{% else %}{{ message['content'] + '<|im_end|>' + '\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
START, END = 0, 1
TALK = [
    ("system", "Be brief."),
    ("user", "Hi"),
    ("assistant", "Yo"),
    ("user", "Bye"),
    ("assistant", "So long"),
]


def turns(*pairs):
    return [{"role": role, "content": content} for role, content in pairs]


def byte_level(folder: Path, template=CHATML, **flags) -> Path:
    """A tokenizer of bytes with two marks, and what stands beside it."""
    folder.mkdir(exist_ok=True)
    marks = ["<|im_start|>", "<|im_end|>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([*marks, *letters])}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.add_special_tokens([AddedToken(mark, special=True, **flags) for mark in marks])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    said = {"eos_token": "<|im_end|>", "bos_token": None, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    return folder


def load(kind="bytes", **fields):
    config = TOKENIZERS.get(kind).Config(**fields)
    return config.component(config, None, None)


def encoded(tokenizer, template, *pairs, last_only=False, end=None):
    encoder = Encoder(tokenizer, template, end_of(tokenizer, end), last_only)
    (document,) = encoder.encode([("row 0", checked(turns(*pairs), "row 0"))])
    return document


def test_the_ids_of_a_small_conversation():
    ids, scored = encoded(load(), PLAIN, ("user", "Hi"), ("assistant", "Yo"))
    prompt = b"User:\nHi\n\nAssistant:\n"
    assert ids.tolist() == [256, *prompt, *b"Yo", 256]
    assert scored.tolist() == [0] * (1 + len(prompt)) + [1, 1, 1]


@pytest.mark.parametrize("last_only", [False, True])
def test_every_response_or_the_last_is_scored_with_its_end(last_only):
    ids, scored = encoded(load(), PLAIN, *TALK, ("user", "anyone there?"), last_only=last_only)
    parts = [
        (b"System:\nBe brief.\n\nUser:\nHi\n\nAssistant:\n", False),
        (b"Yo", not last_only),
        (b"User:\nBye\n\nAssistant:\n", False),
        (b"So long", True),
    ]
    expected = [(256, 0)]
    for text, counts in parts:
        expected += [(byte, int(counts)) for byte in text]
        expected += [(256, int(counts))] if text in (b"Yo", b"So long") else []
    assert list(zip(ids.tolist(), scored.tolist(), strict=True)) == expected


def test_marks_of_the_template_are_ids_and_what_follows_the_end_is_not_scored(tmp_path):
    tokenizer = load("file", path=str(byte_level(tmp_path)))
    ids, scored = encoded(tokenizer, tokenizer.chat_template, ("user", "Hi"), ("assistant", "Yo"))
    text = [tokenizer.encode(part).tolist() for part in ("user\nHi", "\n", "assistant\n", "Yo")]
    prompt = [START, *text[0], END, *text[1], START, *text[2]]
    assert ids.tolist() == [*prompt, *text[3], END, *text[1]]
    assert scored.tolist() == [0] * len(prompt) + [1, 1, 1] + [0]


def test_the_name_of_a_mark_in_a_message_stays_text(tmp_path):
    tokenizer = load("file", path=str(byte_level(tmp_path)))
    pairs = [("user", "say <|im_end|>\ufdd0 twice"), ("assistant", "<|im_end|><|im_end|>")]
    ids, scored = encoded(tokenizer, CHATML, *pairs)
    assert (ids == END).sum() == 2
    assert tokenizer.decode(ids[scored == 1]) == "<|im_end|><|im_end|>"
    assert "say <|im_end|>\ufdd0 twice" in tokenizer.decode(ids)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [{}, {"rstrip": True}, {"lstrip": True}], ids=str)
def test_chat_templates_give_what_transformers_gives(tmp_path, flags):
    """Ids and the mask of `{% generation %}`, which is independent of how responses are found here."""
    transformers = pytest.importorskip("transformers")
    folder = byte_level(tmp_path, **flags)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer = load("file", path=str(folder))
    for pairs in (
        TALK,
        [("user", "naïve  \n"), ("assistant", "\n\nwell "), ("user", " "), ("assistant", "x")],
    ):
        expected = theirs.apply_chat_template(
            turns(*pairs), tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        ids, scored = encoded(tokenizer, tokenizer.chat_template, *pairs)
        assert ids.tolist() == list(expected["input_ids"])
        assert scored.tolist() == list(expected["assistant_masks"])


def test_the_template_of_a_file_beside_the_tokenizer_comes_first(tmp_path):
    folder = byte_level(
        tmp_path, template=[{"name": "rag", "template": "x"}, {"name": "default", "template": "y"}]
    )
    assert load("file", path=str(folder)).chat_template == "y"
    (folder / "chat_template.jinja").write_text("z")
    assert load("file", path=str(folder)).chat_template == "z"
    assert load().chat_template is None


def test_bos_is_written_once(tmp_path):
    folder = byte_level(tmp_path)
    for template in ("{{ bos_token }}" + PLAIN, PLAIN):
        tokenizer = load("file", path=str(folder), bos="<|im_start|>")
        ids, _ = encoded(tokenizer, template, ("user", "Hi"), ("assistant", "Yo"))
        assert (ids[0], (ids == START).sum(), ids[-1]) == (START, 1, END)


def test_a_first_token_is_never_scored(tmp_path):
    template = "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}{% endif %}{% endfor %}"
    tokenizer = load("file", path=str(byte_level(tmp_path)))
    _, scored = encoded(tokenizer, template, ("user", "Hi"), ("assistant", "Yo"))
    assert scored.tolist() == [0, 1, 1]


def test_which_mark_ends_a_response(tmp_path):
    folder = byte_level(tmp_path)
    tokenizer = load("file", path=str(folder))
    assert [end_of(tokenizer, name) for name in (None, "<|im_start|>")] == [END, START]
    assert end_of(load(), None) == 256
    with pytest.raises(
        ValueError, match=r"data.corpus.end: unknown mark '<im_end>'; did you mean '<|im_end|>'"
    ):
        end_of(tokenizer, "<im_end>")
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ValueError, match=r"data.corpus.end: the tokenizer names neither eos nor bos"):
        end_of(load("file", path=str(folder)), None)


REWRITES = "{% for m in messages %}{{ loop.last }}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "match"),
    [
        ("{% for %}", "data.corpus.template: is not Jinja"),
        (REWRITES, "row 0, message 2: data.corpus.template does not write it as"),
        ("{{ messages[0].content }}", "row 0, message 2: data.corpus.template leaves out the response"),
        ("{{ raise_exception('no system, please') }}", "row 0: data.corpus.template: no system, please"),
        ("{{ messages.clear() }}", "row 0: data.corpus.template: .*unsafe|not safe"),
        ("{{ ''.__class__.__mro__ }}", "row 0: data.corpus.template: .*unsafe"),
    ],
)
def test_templates_that_cannot_be_used(template, match):
    with pytest.raises(ValueError, match=match):
        encoded(load(), template, *TALK)


@pytest.mark.parametrize(
    ("messages", "match"),
    [
        ("text", "row 3: str is not a list of messages"),
        (["text"], "row 3, message 0: str is not a message"),
        (
            turns(("user", "a"), ("asistant", "b")),
            "message 1: unknown role 'asistant'; did you mean 'assistant'",
        ),
        ([{"role": "user", "contents": "a"}], r"message 0: no field 'content' .*; did you mean 'contents'\?"),
        ([{"role": "user", "content": 1}], "message 0: field 'content' holds int, not text"),
        (turns(("user", "a"), ("assistant", " \n")), "message 1: the response is empty"),
        (turns(("system", "s"), ("assistant", "b")), "row 3: the assistant has the first turn"),
        (turns(("user", "a")), "row 3: no response: no message has the role assistant"),
        ([], "row 3: no response"),
    ],
)
def test_bad_conversations_are_named(messages, match):
    with pytest.raises(ValueError, match=match):
        checked(messages, "row 3")


def test_turns_after_the_last_response_are_left_out():
    assert checked(turns(*TALK, ("user", "hello?"), ("tool", "x")), "row 0") == turns(*TALK)


def test_many_conversations_come_one_by_one(monkeypatch):
    monkeypatch.setattr("depthkit.data.conversations.encoding.BATCH", 2)
    encoder = Encoder(load(), PLAIN, 256, False)
    answers = ["one", "two", "three", "four", "five"]
    documents = list(encoder.encode(("row", turns(("user", "n?"), ("assistant", a))) for a in answers))
    assert [bytes(ids[(scored == 1) & (ids < 256)].tolist()).decode() for ids, scored in documents] == answers
    assert all(document.dtype == np.int64 for document in documents)


def test_the_document_prints_the_plain_template():
    page = (Path(__file__).parent.parent.parent / "docs" / "data.md").read_text()
    assert f"```jinja\n{PLAIN}```" in page
