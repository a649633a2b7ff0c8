"""The tasks without a download, as documents: balance, repeatability, and WordNet's files. Needs no lm-eval."""

from collections import Counter
from itertools import pairwise

import pytest

from depthkit.interop.lm_eval import wordnet
from depthkit.interop.lm_eval.tasks import TASKS
from depthkit.interop.lm_eval.tasks.agreement import ATTRACTORS, SUBJECTS

LICENCE = "  1 This software and database is provided \n"


def documents(name, **settings):
    component = TASKS.get(name)
    task = component(component.Config(**settings))
    return task.documents(), task.examples()


def line(words, gloss, part="n"):
    named = " ".join(f"{word} {place:x}" for place, word in enumerate(words))
    return f"00001740 03 {part} {len(words):02x} {named} 001 ~ 00001930 {part} 0000 | {gloss}  \n"


@pytest.fixture
def dictionary(tmp_path, monkeypatch):
    """Files in WordNet's format: nouns to ask, and others that are too few or cannot be asked."""
    nouns = [
        line([word, "other_word"], f'a thing of the kind number {place} of all; "like this"')
        for place, word in enumerate(["cat", "dog", "cow", "hen", "pig", "owl", "ant", "bee", "elk", "fox"])
    ]
    nouns.append(line(["Proper"], "a name that opens with a capital letter"))
    nouns.append(line(["circle"], "a line that is a circular one, all around"))
    nouns.append(line(["café"], "a small restaurant, in letters of latin-1"))
    files = {"noun": nouns, "verb": [line(["go"], "to move", "v")], "adj": [], "adv": []}
    files["adj"] = [line(["galore(ip)"], "in great numbers; a lot", "s")]
    for part, lines in files.items():
        (tmp_path / f"data.{part}").write_text(LICENCE + "".join(lines), encoding="latin-1")
    monkeypatch.setenv("WNSEARCHDIR", str(tmp_path))
    return tmp_path


def number_of(document):
    """What grammar says, from the words alone: 1 where the subject is plural."""
    return int(document["context"].split()[1] in SUBJECTS.values())


def test_agreement_is_balanced_and_right():
    asked, examples = documents("agreement")
    assert len(asked) == 40
    assert all(document["gold"] == number_of(document) for document in asked + examples)
    between = [int(document["context"].split()[-1] in ATTRACTORS.values()) for document in asked]
    cells = Counter(zip([document["gold"] for document in asked], between, strict=True))
    assert set(cells.values()) == {10}
    assert len(cells) == 4


def test_agreement_is_the_same_however_much_is_asked():
    few, many = documents("agreement", count=6)[0], documents("agreement", count=400)[0]
    assert few == many[:6]
    assert len({document["context"] for document in many}) == 400
    assert few != documents("agreement", count=6, seed=1)[0]
    shown = {document["context"] for document in documents("agreement")[1]}
    assert not shown & {document["context"] for document in many}
    with pytest.raises(ValueError, match="agreement: has 4448 items, not 5000"):
        documents("agreement", count=5000)


def test_definitions(dictionary):
    asked, examples = documents("definition", count=8)
    assert len(asked) == 8
    assert len(examples) == 2  # ten nouns can be asked; verbs and adjectives are too few for four choices
    for document in asked:
        assert len(set(document["choices"])) == 4
        number = ["cat", "dog", "cow", "hen", "pig", "owl", "ant", "bee", "elk", "fox"].index(
            document["choices"][document["gold"]].strip()
        )
        wanted = f"Definition: a thing of the kind number {number} of all.\nWord:"
        assert document["context"] == wanted
    assert {document["gold"] for document in asked + examples} > {0}
    assert asked == documents("definition", count=8)[0]
    with pytest.raises(ValueError, match="WordNet has 10 words to ask, not 11"):
        documents("definition", count=11)


def test_wordnet_is_read_as_it_is_written(dictionary):
    found = wordnet.entries()
    assert found["noun"][0] == (("cat", "other_word"), "a thing of the kind number 0 of all")
    assert found["noun"][-1].words == ("café",)
    assert found["adj"] == [(("galore",), "in great numbers; a lot")]
    (dictionary / "data.verb").write_text("not a dictionary\n")
    with pytest.raises(ValueError, match=r"data.verb: is not a data file of WordNet"):
        wordnet.entries()


def test_wordnet_is_looked_for_where_its_own_programs_look(dictionary, tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    (home / "dict").symlink_to(dictionary)
    monkeypatch.setenv("WNSEARCHDIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("WNHOME", str(home))
    assert len(wordnet.entries()["noun"]) == 13
    monkeypatch.setenv("WNHOME", str(tmp_path / "neither"))
    monkeypatch.setattr(wordnet, "DEBIAN", tmp_path / "nor")
    with pytest.raises(ValueError, match="apt-get install wordnet-base, or set WNSEARCHDIR"):
        wordnet.entries()


def test_conditions_take_turns():
    """So that any four in a row are balanced."""
    golds = [document["gold"] for document in documents("agreement", count=12)[0]]
    assert all(first != second for first, second in pairwise(golds))
