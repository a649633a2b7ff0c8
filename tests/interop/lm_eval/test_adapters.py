"""Both adapters against the models' own logits: likelihoods, windows, generation, edits, and what opens a text."""

import contextlib

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("lm_eval", reason="needs the extra tasks: pip install 'depthkit[tasks]'")

from lm_eval.api.instance import Instance

from depthkit.data.tokenizers.bytes import ByteTokenizer
from depthkit.interop import hf_tokenizer
from depthkit.interop.lm_eval.pretrained import PretrainedLM
from depthkit.interop.lm_eval.subject_lm import SubjectLM
from depthkit.utilization import Subject
from depthkit.utilization.capture import skipping
from depthkit.utilization.edits import skip
from tests.models import make_model, redraw
from tests.utilization.families import family

BOS = 256
TEXTS = [
    ("The cat", " is"),
    ("The cats near the tree", " are"),
    ("", " a"),
    ("One ", "two"),
    ("The cat", " sat on"),
]


def instances(arguments, kind="loglikelihood"):
    return [Instance(request_type=kind, doc={}, arguments=each, idx=0) for each in arguments]


def likelihood(lm, *pair):
    return lm.loglikelihood(instances([pair]), disable_tqdm=True)[0]


def by_hand(logits_of, context, continuation):
    """Log probability of the continuation's bytes, and whether each was the likeliest; lm-eval counts a space
    at the end of a context to what follows."""
    context, continuation = context.rstrip(), context[len(context.rstrip()) :] + continuation
    ids = torch.tensor([[BOS, *(context + continuation).encode()]])
    log = F.log_softmax(logits_of(ids)[0].double(), -1)
    wanted = torch.tensor(list(continuation.encode()))
    rows = log[-1 - len(wanted) : -1]
    return float(rows.gather(1, wanted[:, None]).sum()), bool((rows.argmax(-1) == wanted).all())


@pytest.fixture(scope="module")
def own():
    return redraw(make_model(vocab=257, depth=3, loops=1), std=0.3).eval()


@pytest.fixture(scope="module")
def theirs():
    return family("llama", vocab_size=257, bos_token_id=BOS, eos_token_id=BOS)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """Bytes as a `transformers` tokenizer."""
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("bytes")
    made = ByteTokenizer(ByteTokenizer.Config(), None, None)
    hf_tokenizer.save(made, ByteTokenizer.Config(), folder, 256)
    return AutoTokenizer.from_pretrained(folder)


def subject_lm(model, max_length=64, **settings):
    return SubjectLM(
        Subject(model), ByteTokenizer(ByteTokenizer.Config(), None, None), max_length, **settings
    )


def logits_of(model, edit=None):
    """`ids -> logits` by the model's own forward, with a hook that skips."""

    def logits(ids):
        subject = Subject(model)
        hooked = contextlib.nullcontext() if edit is None else skipping(subject.layers, edit.first)
        with torch.no_grad(), hooked:
            return model(ids).logits

    return logits


def own_logits(model):
    def logits(ids):
        with torch.no_grad():
            return model.logits(model(ids).hidden)

    return logits


@pytest.mark.parametrize("batch_tokens", [1, 40, 1024])
def test_likelihoods_of_our_own_models(own, batch_tokens):
    found = subject_lm(own, batch_tokens=batch_tokens).loglikelihood(instances(TEXTS), disable_tqdm=True)
    for pair, (value, greedy) in zip(TEXTS, found, strict=True):
        wanted, likeliest = by_hand(own_logits(own), *pair)
        assert value == pytest.approx(wanted, abs=1e-4)
        assert greedy == likeliest


def test_greedy_is_what_the_model_would_say(own):
    lm = subject_lm(own)
    (said,) = lm.generate_until(instances([("The", {"until": [], "max_gen_toks": 2})]), disable_tqdm=True)
    with torch.no_grad():
        first = int(own_logits(own)(torch.tensor([[BOS, *b"The"]]))[0, -1].argmax())
    if first < 128:  # a byte that is a text by itself
        assert likelihood(lm, "The", chr(first))[1]
        assert said.startswith(chr(first))
    assert not likelihood(lm, "The", chr((first + 1) % 128))[1]


def test_pretrained_and_subject_adapters_agree(theirs, tokenizer):
    first = PretrainedLM(Subject(theirs), tokenizer, BOS, 3)
    for other in (first, subject_lm(theirs)):
        with other.edited(skip(2)):
            edited = other.loglikelihood(instances(TEXTS), disable_tqdm=True)
        intact = other.loglikelihood(instances(TEXTS), disable_tqdm=True)
        for edit, answers in ((None, intact), (skip(2), edited)):
            for pair, (value, greedy) in zip(TEXTS, answers, strict=True):
                wanted, likeliest = by_hand(logits_of(theirs, edit), *pair)
                assert value == pytest.approx(wanted, abs=1e-4)
                assert greedy == likeliest


def test_what_opens_a_text_is_said(theirs, tokenizer):
    """This tokenizer opens a text by itself; what is said counts."""
    assert tokenizer.encode("ab") == [BOS, 97, 98]
    without, opened = (PretrainedLM(Subject(theirs), tokenizer, bos, 3) for bos in (None, BOS))
    assert (without.tok_encode("ab"), opened.tok_encode("ab")) == ([97, 98], [BOS, 97, 98])
    assert opened.tok_encode("<bos>ab") == [BOS, 97, 98]
    assert opened.tok_encode("ab", add_special_tokens=False) == [97, 98]
    ids, mask = opened.tok_batch_encode(["a", "bcd"])
    assert ids[1].tolist() == [BOS, 98, 99, 100]
    assert mask.tolist() == [[0, 0, 1, 1], [1, 1, 1, 1]]
    assert without.describe()["bos"] is None
    assert opened.describe() == {
        "adapter": PretrainedLM.words,
        "bos": BOS,
        "prefix": BOS,
        "max_length": 256,
    }
    nothing = subject_lm(theirs)
    nothing.bos = nothing.prefix = None
    with pytest.raises(ValueError, match="no mark to open it"):
        likelihood(nothing, "", "a")


@pytest.mark.parametrize("length", [4, 7, 64])
def test_whole_texts_in_windows(own, length):
    """Every token once, given as many of those before it as a window holds."""
    text = "In the beginning was"
    lm = subject_lm(own, max_length=length)
    (found,) = lm.loglikelihood_rolling(instances([(text,)]), disable_tqdm=True)
    ids, wanted = [BOS, *text.encode()], 0.0
    starts = range(0, len(text), length)
    for start in starts:
        end = min(start + length, len(text))
        begin = max(0, end - length)
        log = F.log_softmax(own_logits(own)(torch.tensor([ids[begin:end]]))[0].double(), -1)
        for place in range(start, end):
            wanted += float(log[place - begin, ids[place + 1]])
    assert found == pytest.approx(wanted, abs=1e-4)


def test_long_contexts_lose_their_beginning(own):
    lm = subject_lm(own, max_length=6)
    with pytest.warns(UserWarning, match="cut to the last 6 tokens"):
        found = likelihood(lm, "abcdefgh", "ij")
    ids = torch.tensor([list(b"defghij")])
    log = F.log_softmax(own_logits(own)(ids[:, :-1])[0].double(), -1)
    assert found[0] == pytest.approx(float(log[-2, ord("i")] + log[-1, ord("j")]), abs=1e-4)
    with pytest.raises(ValueError, match="asks for 7 tokens at once, and this model reads 6"):
        likelihood(lm, "a", "bcdefgh")


def greedy(logits, text, count, stop):
    ids, made = [BOS, *text.encode()], []
    for _ in range(count):
        token = int(logits(torch.tensor([ids]))[0, -1].argmax())
        if token == BOS:
            break
        ids.append(token)
        made.append(token)
    return bytes(made).decode(errors="replace").partition(stop)[0]


PROMPTS = ["The", "abc", "In the"]


def test_generation_with_and_without_the_cache(own, theirs, tokenizer):
    wanted = [greedy(own_logits(own), text, 8, "\n") for text in PROMPTS]
    asked = instances([(text, {"until": ["\n"], "max_gen_toks": 8}) for text in PROMPTS], "generate_until")
    assert subject_lm(own).generate_until(asked, disable_tqdm=True) == wanted
    for edit in (None, skip(1)):
        wanted = [greedy(logits_of(theirs, edit), text, 8, "\n") for text in PROMPTS]
        for lm in (subject_lm(theirs), PretrainedLM(Subject(theirs), tokenizer, BOS, 3)):
            with contextlib.nullcontext() if edit is None else lm.edited(edit):
                assert lm.generate_until(asked, disable_tqdm=True) == wanted


def test_where_a_text_ends(own):
    lm = subject_lm(own)
    (whole,) = lm.generate_until(instances([("ab", {"until": [], "max_gen_toks": 12})]), disable_tqdm=True)
    stop = whole[3:5]
    (cut,) = lm.generate_until(instances([("ab", {"until": [stop], "max_gen_toks": 12})]), disable_tqdm=True)
    assert cut == whole.partition(stop)[0]
    with pytest.raises(ValueError, match="top_p: only until"):
        lm.generate_until(instances([("ab", {"do_sample": True, "top_p": 0.5})]), disable_tqdm=True)
