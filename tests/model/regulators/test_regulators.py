"""What holds for regulators as such: composition, segments, and that a new kind needs no edit elsewhere."""

import pytest
import torch

from depthkit.model import Transformer, account
from depthkit.model.gains import Gains, per_branch, per_site
from depthkit.model.registries import REGULATORS
from depthkit.model.regulators.base import Regulator
from depthkit.model.regulators.table import Table
from depthkit.model.roles import assign
from tests.model.regulators import kit
from tests.models import make_config, make_ids, make_model

TWO = [
    {"name": "a", "pattern": ["dense"], "repeat": 2},
    {"name": "b", "pattern": ["dense"], "repeat": 2, "loops": 3},
]


def test_regulators_compose_by_multiplying():
    config = [{"kind": "residual_scale", "scale": 0.5}, "lns", {"kind": "residual_scale", "scale": 0.25}]
    gains = make_model(regulators=config).schedules(make_config().plan())
    torch.testing.assert_close(gains.write, torch.full((2, 2, 1), 0.125))
    torch.testing.assert_close(gains.read[:, 0, 0], torch.tensor([1.0, 2**-0.5]))


def test_gains_of_some_visits_are_neutral_elsewhere():
    gains = Gains(read=per_site([2.0, 4.0]), final=torch.ones(1)).within(torch.tensor([True, False, True]))
    assert gains.read[:, 0, 0].tolist() == [2.0, 1.0, 4.0]
    assert gains.write is None
    assert gains.inside_blocks() == Gains(read=gains.read)
    assert per_branch([(1.0, 2.0), (3.0, 4.0)]).tolist() == [[[1.0], [2.0]], [[3.0], [4.0]]]


def test_a_part_of_a_plan_keeps_the_depth_of_the_whole():
    plan = make_config(segments=TWO).plan()
    part = plan.part(frozenset({"b"}))
    assert part.depth == 6
    assert part.indices("executed") == [3, 4, 5, 6, 7, 8]
    assert part.indices("stored") == [3, 4, 3, 4, 3, 4]
    assert (part.total("executed"), part.total("stored")) == (8, 4)
    assert plan.part(frozenset({"a", "b"})) is plan
    assert plan.unrolled().indices("stored") == plan.indices("stored")
    assert plan.unrolled().total("stored") == 4


def test_learned_tables_hold_only_the_visits_of_their_segment():
    segments = [TWO[0], {**TWO[1], "regulators": ["skip_init", "lns"]}]
    model = make_model(segments=segments, regulators=["skip_init"])
    shared, own, _ = model.schedules.regulators
    assert (shared.table.gain.shape, own.table.gain.shape) == ((2, 2, 1), (6, 2, 1))
    assert account(model.config, 9).by_part["schedules"] == 16
    with torch.no_grad():
        shared.table.gain.fill_(2.0)
        own.table.gain.fill_(3.0)
    assert model.schedules(model.plan).write[:, 0, 0].tolist() == [2.0] * 2 + [3.0] * 6


def test_a_regulator_of_one_segment_leaves_the_logits():
    completep = {"kind": "completep", "base_dim": 8, "scale_init": False}
    segments = [TWO[0], {**TWO[1], "regulators": [completep]}]
    inside, whole = make_model(segments=segments), make_model(segments=TWO, regulators=[completep])
    assert inside.schedules(inside.plan).logits is None
    assert whole.schedules(whole.plan).logits.tolist() == [0.5]


@pytest.fixture
def toy():
    """A learned skip gain a visit, as a user would write it."""

    @REGULATORS.register("toy_skip")
    class ToySkip(Regulator):
        """A learned scalar on the carried stream, one a visit, shared by both branches."""

        equation = "skip_l = exp(s_l)"
        source = "a test"
        neutral = {}

        class Config(Regulator.Config):
            def num_parameters(self, plan, dim):
                return plan.depth

        def build(self, model):
            self.log_skip = torch.nn.Parameter(torch.empty(self.config.acting(model).depth))
            assign(self, schedule="log_skip")

        def reset_parameters(self):
            torch.nn.init.zeros_(self.log_skip)

        def gains(self, plan, step, training):
            return Gains(skip=self.log_skip.exp()[:, None, None].expand(-1, 2, 1))

    yield kit.Case("toy_skip")
    REGULATORS.remove("toy_skip")


def test_a_toy_regulator_is_one_class_and_the_kit_covers_it(toy):
    assert toy in kit.defaults()
    kit.check_neutral(toy)
    kit.check_meta(toy)
    kit.check_checkpointing(toy)
    kit.check_training(toy, 8, 3)
    model, ids = toy.model(depth=3), make_ids()
    model(ids, ids).loss.backward()
    assert (model.schedules.regulators[0].log_skip.grad != 0).all()
    assert account(model.config, 9).stored == sum(p.numel() for p in model.parameters())


def test_a_table_survives_the_meta_device_and_counts_itself():
    plan = make_config(segments=TWO).plan()
    for indexing, rows in (("executed", 8), ("stored", 4)):
        table = Table(plan, indexing, 16)
        assert table.gain.shape == (rows, 2, 16)
        assert Table.num_parameters(plan, indexing, 16) == table.gain.numel()
    table.fill(plan, per_site([1.0, 2.0, 3.0, 4.0, 3.0, 4.0, 3.0, 4.0]))
    assert table(plan)[:, 1, 5].tolist() == [1, 2, 3, 4, 3, 4, 3, 4]


def test_a_regulator_that_acts_nowhere_trains_like_none():
    segments = [{**segment, "regulators": []} for segment in TWO]
    model = Transformer(make_config(segments=segments, regulators=["layer_scale", "lns"]))
    assert account(model.config, 9).stored == sum(p.numel() for p in model.parameters())
    ids = make_ids()
    assert torch.equal(model(ids).hidden, make_model(segments=segments)(ids).hidden)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model(ids, ids).loss.backward()
    optimizer.step()
    assert torch.isfinite(model(ids, ids).loss)
