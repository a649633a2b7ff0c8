import pytest
import yaml

from depthkit import config as c
from depthkit.model import ModelConfig
from tests.models import model_dict


def write(folder, name, value):
    path = folder / name
    path.write_text(value if isinstance(value, str) else yaml.safe_dump(value))
    return path


def check(raw):
    return c.validate(ModelConfig, raw, "x.yaml")


def refused(raw):
    with pytest.raises(c.ConfigError) as error:
        check(raw)
    return str(error.value)


def test_extends_merges_and_a_changed_kind_replaces(tmp_path):
    write(tmp_path, "base.yaml", {"norm": {"kind": "rms", "eps": 1e-3}, "list": [1, 2], "deep": {"a": 1}})
    child = write(
        tmp_path,
        "child.yaml",
        {"extends": "base.yaml", "norm": {"kind": "layer"}, "list": [3], "deep": {"b": 2}},
    )
    assert c.read(child) == {"norm": {"kind": "layer"}, "list": [3], "deep": {"a": 1, "b": 2}}


def test_a_bare_name_of_the_same_kind_keeps_the_fields():
    assert c.merge({"norm": {"kind": "rms", "eps": 1e-3}}, {"norm": "rms"}) == {
        "norm": {"kind": "rms", "eps": 1e-3}
    }
    assert c.merge({"norm": "rms"}, {"norm": {"eps": 1e-3}}) == {"norm": {"kind": "rms", "eps": 1e-3}}


def test_any_mapping_may_extend_a_file(tmp_path):
    write(tmp_path, "run.yaml", {"train": {"steps": 3, "lr": 0.1}})
    path = write(
        tmp_path, "ladder.yaml", {"kind": "ladder", "run": {"extends": "run.yaml", "train": {"lr": 0.2}}}
    )
    assert c.read(path) == {"kind": "ladder", "run": {"train": {"steps": 3, "lr": 0.2}}}
    with pytest.raises(c.ConfigError, match="extends names a file"):
        c.read(write(tmp_path, "bad.yaml", {"run": {"extends": 3}}))


def test_extends_in_a_circle_is_named(tmp_path):
    write(tmp_path, "a.yaml", {"extends": "b.yaml"})
    write(tmp_path, "b.yaml", {"extends": "a.yaml"})
    with pytest.raises(c.ConfigError, match=r"a\.yaml -> b\.yaml -> a\.yaml"):
        c.read(tmp_path / "a.yaml")


def test_missing_file_offers_the_nearest(tmp_path):
    write(tmp_path, "quickstart.yaml", {})
    with pytest.raises(c.ConfigError, match=r"did you mean 'quickstart\.yaml'"):
        c.read(tmp_path / "quickstrat.yaml")


@pytest.mark.parametrize("text", ["a: [1", "- 1\n- 2", "a: 1\na: 2", "\x00\x01"])
def test_files_that_are_not_a_mapping_are_refused(tmp_path, text):
    with pytest.raises(c.ConfigError, match=r"x\.yaml"):
        c.read(write(tmp_path, "x.yaml", text))


def test_overrides_address_list_items_by_name_kind_and_index():
    raw = {
        "model": {
            "segments": [{"name": "core", "loops": 1}],
            "regulators": ["lns", {"kind": "residual_scale"}],
        }
    }
    raw = c.apply_override(raw, "model.segments.core.loops=48")
    raw = c.apply_override(raw, "model.segments.0.repeat=2")
    raw = c.apply_override(raw, "model.regulators.lns.exponent=0.25")
    raw = c.apply_override(raw, "model.regulators.residual_scale.scale=1e-1")
    assert raw["model"]["segments"] == [{"name": "core", "loops": 48, "repeat": 2}]
    assert raw["model"]["regulators"] == [
        {"kind": "lns", "exponent": 0.25},
        {"kind": "residual_scale", "scale": 0.1},
    ]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.segments.cor.loops=2", "did you mean 'core'"),
        ("model.segments.7.loops=2", "Allowed"),
        ("model", "write key=value"),
        ("model.x=[1", "not YAML"),
        ("model.dim.x.y=1", "which has no keys"),
    ],
)
def test_overrides_that_cannot_be_applied(override, message):
    with pytest.raises(c.ConfigError, match=message):
        c.apply_override({"model": {"dim": 3, "segments": [{"name": "core"}]}}, override)


def test_overrides_replace_a_component_of_another_kind():
    raw = {"model": {"norm": {"kind": "rms", "eps": 1e-3}}}
    assert c.apply_override(raw, "model.norm=layer") == {"model": {"norm": {"kind": "layer"}}}
    assert c.apply_override(raw, "model.norm={kind: layer, bias: false}")["model"]["norm"]["bias"] is False


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"segmnts": 1}, ["segmnts: unknown key", "did you mean 'segments'"]),
        ({"norm": "rmss"}, ["norm: unknown norm kind 'rmss'", "did you mean 'rms'", "layer, none, rms"]),
        ({"norm": {"kind": "rms", "epz": 1}}, ["norm.epz", "did you mean 'eps'"]),
        ({"norm": {"eps": "a"}}, ["norm.eps", "valid number", "'a'"]),
        ({"norm": 3}, ["norm: needs a kind", "3"]),
        ({"final_norm": {"eps": -1}}, ["final_norm.eps", "greater than 0", "-1"]),
        ({"regulators": ["lnss"]}, ["regulators.0", "did you mean 'lns'"]),
        ({"placement": "prre"}, ["placement", "did you mean 'pre'"]),
        ({"placement": [1, 0, 2]}, ["placement", "[1, 0, 2]"]),
        ({"dim": 15}, ["blocks.dense.mixer", "dim (15)", "num_heads (2)"]),
        ({"dim": "16"}, ["dim", "valid integer", "'16'"]),
        ({"embedding_std": float("nan")}, ["embedding_std", "nan"]),
    ],
)
def test_bad_values_are_refused_with_path_value_and_what_is_allowed(change, expected):
    message = refused({**model_dict(), **change})
    for part in expected:
        assert part in message


def test_heads_must_divide():
    raw = model_dict()
    raw["blocks"]["dense"]["mixer"] = {"kind": "gqa", "num_heads": 32, "num_kv_heads": 5}
    message = refused({**raw, "dim": 64})
    assert "num_heads (32)" in message
    assert "num_kv_heads (5)" in message
    assert "[1, 2, 4, 8, 16, 32]" in message


def test_patterns_name_blocks_and_segments_are_unique():
    raw = model_dict()
    raw["segments"][0]["pattern"] = ["dens"]
    assert "did you mean 'dense'" in refused(raw)
    raw = model_dict()
    raw["segments"] = raw["segments"] * 2
    assert "unique" in refused(raw)


def test_a_resolved_config_reads_back_equal():
    config = check({**model_dict(), "norm": "layer", "regulators": ["lns"], "final_norm": False})
    again = check(yaml.safe_load(c.to_yaml(config)))
    assert again == config
    assert c.fingerprint(again) == c.fingerprint(config)
    assert c.fingerprint(check(model_dict())) != c.fingerprint(config)


def test_advice_names_settings_without_effect():
    raw = model_dict()
    raw["blocks"]["idle"] = raw["blocks"]["dense"]
    assert any("blocks.idle" in line for line in check(raw).advice())
    assert any(
        "scaled_init" in line
        for line in check({**model_dict(), "regulators": ["lns", "scaled_init"]}).advice()
    )
    assert any("final_norm" in line for line in check({**model_dict(), "placement": "post"}).advice())
    assert check(model_dict()).advice() == []


def test_json_schema_knows_kinds_and_fields():
    schema = ModelConfig.model_json_schema()
    assert "eps" in str(schema["properties"]["norm"]) or "RMSNormConfig" in str(schema)
    assert "lns" in str(schema["properties"]["regulators"])
