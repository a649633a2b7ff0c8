"""The page of all kinds: it is what the code says, and its counts are right."""

from pathlib import Path

import pytest

from depthkit.ladder.catalogue import catalogue, write_catalogue
from depthkit.ladder.gain_profile import gain_profile
from depthkit.ladder.hosts import AXES
from depthkit.ladder.operations import operations_per_token
from tests.models import make_config

PAGE = Path(__file__).parents[2] / "docs" / "regulators.md"


@pytest.fixture(scope="module")
def text():
    return catalogue()


def test_the_committed_page_is_what_the_code_gives(text):
    assert PAGE.read_text() == text, "the page is out of date: run `make docs`"


def test_every_kind_has_a_row_and_a_section_with_its_equation(text):
    for axis in AXES.values():
        for kind in axis.registry.names():
            component = axis.registry.get(kind)
            assert f"\n| [{kind}](#{kind}) |" in text
            section = text.split(f"\n### {kind}\n")[1].split("\n### ")[0]
            assert f"    {component.equation}\n" in section
            assert getattr(component, "source", "") in section
            for field in (
                component.Config.model_fields.keys() - axis.base.Config.model_fields.keys() - {"kind"}
            ):
                assert f"- `{field}` = " in section


def test_pictures_lead_somewhere(text):
    for line in text.splitlines():
        if line.startswith("!["):
            assert (PAGE.parent / line.partition("](")[2].rstrip(")")).exists(), "run `make docs`"


def test_pictures_are_drawn_of_regulators_with_gains(tmp_path, monkeypatch):
    monkeypatch.setattr("depthkit.ladder.catalogue.catalogue", lambda: "text")
    monkeypatch.setattr("depthkit.ladder.catalogue.PICTURE_DEPTH", 4)
    write_catalogue(tmp_path / "page.md")
    drawn = {p.stem for p in (tmp_path / "images").iterdir()}
    assert {"lns", "deepnorm", "rezero"} <= drawn
    assert "scaled_init" not in drawn
    assert (tmp_path / "page.md").read_text() == "text"


def test_operations_are_those_of_gains_and_norms():
    plain = operations_per_token(make_config(depth=3))
    assert operations_per_token(make_config(depth=3, regulators=["lns"])) - plain == 3 * 2 * 16
    # rms on a token: square, mean, times inverse root, gain, and two operations on the mean itself
    without = operations_per_token(make_config(depth=3, norm="none"))
    assert plain - without == pytest.approx(7 * 4 * 16, abs=7 * 2)


def test_operations_of_a_matrix_product_count_twice_its_parameters():
    narrow, wide = (
        make_config(blocks={"dense": {"mixer": {"num_heads": 2}, "ffn": {"hidden_dim": n}}}) for n in (8, 16)
    )
    elementwise = 2 * 8 * 3  # in each layer 8 more channels of sigmoid-weighted unit and product
    extra = operations_per_token(wide) - operations_per_token(narrow) - 2 * 2 * 3 * 16 * 8
    assert 0 < extra <= elementwise


def test_profiles_hold_gains_and_rules_in_words():
    profile = gain_profile(make_config(depth=4, regulators=["lns"]))
    assert list(profile.words()) == ["read: 1 at the first visit, 0.5 at the last"]
    profile = gain_profile(make_config(depth=8, regulators=["scaled_init"]))
    assert list(profile.words()) == ["rule for o, down: std x 0.25"]
    assert not profile.curves
