import pickle

import pytest
from pydantic import Field

from depthkit.registry import Registry, Spec, nearest, unknown


def toy():
    registry = Registry("toy")

    @registry.register("one")
    class One:
        """First."""

        class Config(Spec):
            size: int = Field(1, ge=1)

    return registry, One


def test_register_gives_config_a_kind_and_a_way_back():
    registry, one = toy()
    config = registry.get("one").Config(size=3)
    assert config.kind == "one"
    assert config.component is one
    assert config.model_dump() == {"kind": "one", "size": 3}


def test_registered_configs_can_be_pickled():
    from tests.models import make_config

    config = make_config(regulators=["lns"], norm="layer")
    assert pickle.loads(pickle.dumps(config)) == config


def test_unknown_name_lists_kinds_and_the_nearest():
    registry, _ = toy()
    with pytest.raises(ValueError, match=r"unknown toy kind 'onee'; did you mean 'one'\? Allowed: one\."):
        registry.get("onee")


def test_a_name_is_registered_once():
    registry, _ = toy()
    with pytest.raises(ValueError, match="already registered"):

        @registry.register("one")
        class Other:
            pass


def test_specs_are_strict_and_name_unknown_keys():
    _, one = toy()
    with pytest.raises(ValueError, match="did you mean 'size'"):
        one.Config(sizze=2)
    with pytest.raises(ValueError, match="valid integer"):
        one.Config(size="2")


def test_nearest_is_silent_when_nothing_is_close():
    assert nearest("zzz", ["alpha"]) is None
    assert "did you mean" not in unknown("key", "zzz", ["alpha"])
