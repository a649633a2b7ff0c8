from depthkit.model import Key
from depthkit.model.plan import Segment, make_plan


def plan():
    return make_plan([Segment("pre", ("a",)), Segment("core", ("a", "b"), loops=3), Segment("coda", ("b",))])


def test_visits_follow_segments_loops_and_slots():
    visits = plan().visits
    assert [v.layer for v in visits] == [0, 1, 2, 1, 2, 1, 2, 3]
    assert [v.index for v in visits] == list(range(8))
    assert visits[4].key == Key("core", 1, 1)
    assert [v.block for v in visits] == ["a", "a", "b", "a", "b", "a", "b", "b"]
    assert (plan().depth, plan().num_layers) == (8, 4)


def test_a_plain_stack_has_one_visit_a_layer():
    stack = make_plan([Segment("trunk", ("a",) * 5)])
    assert stack.depth == stack.num_layers == 5
    assert stack.unrolled() == stack


def test_unrolling_keeps_keys_and_gives_each_visit_a_layer():
    looped, flat = plan(), plan().unrolled()
    assert [v.key for v in flat.visits] == [v.key for v in looped.visits]
    assert [v.layer for v in flat.visits] == list(range(8))


def test_depth_indices_are_one_based():
    assert plan().indices("executed") == [1, 2, 3, 4, 5, 6, 7, 8]
    assert plan().indices("stored") == [1, 2, 3, 2, 3, 2, 3, 4]
    assert (plan().total("executed"), plan().total("stored")) == (8, 4)


def test_layers_know_their_block_and_segment():
    assert plan().layer_blocks == ("a", "a", "b", "b")
    assert plan().layer_segments == ("pre", "core", "core", "coda")
