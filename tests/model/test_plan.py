from dataclasses import replace

from depthkit.model import Key
from depthkit.model.plan import Segment, make_plan
from depthkit.model.rows import Rows


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


SEGMENTS = [Segment("pre", ("a",)), Segment("core", ("a", "b"), loops=3), Segment("coda", ("b",))]


def counted(loops, nominal=3, sampled=False):
    """`SEGMENTS` with the core looped otherwise than it is specified."""
    plan, base = (
        make_plan([SEGMENTS[0], replace(SEGMENTS[1], loops=n), SEGMENTS[2]]) for n in (loops, nominal)
    )
    return replace(plan, nominal=base, sampled=sampled)


def test_nominal_indices_leave_what_follows_a_loop_where_it_is():
    assert counted(1).indices("nominal") == [1, 2, 3, 8]
    assert counted(4).indices("nominal") == [1, 2, 3, 4, 5, 6, 7, 6, 7, 8]
    assert counted(3).indices("nominal") == counted(3).indices("executed")
    assert (counted(4).total("nominal"), counted(4).total("executed")) == (8, 10)


def test_auto_is_nominal_where_counts_are_sampled_and_executed_elsewhere():
    for loops in (1, 2, 5):
        still, moving = counted(loops, sampled=True), counted(loops)
        assert still.indices("auto") == still.indices("nominal")
        assert moving.indices("auto") == moving.indices("executed")
        assert (still.total("auto"), moving.total("auto")) == (8, 2 + 2 * loops)
    assert plan().indices("auto") == plan().indices("executed")


def test_a_part_keeps_the_indices_and_totals_of_the_whole():
    whole = counted(4, sampled=True)
    coda, b = whole.part(frozenset({"coda"})), whole.of_block("b")
    assert coda.indices("auto") == [8]
    assert coda.indices("executed") == [10]
    assert b.indices("executed") == [3, 5, 7, 9, 10]
    assert b.indices("stored") == [3, 3, 3, 3, 4]
    for indexing in ("auto", "executed", "stored", "nominal"):
        assert coda.total(indexing) == b.total(indexing) == whole.total(indexing)


def test_a_key_past_the_last_loop_is_clamped_to_it():
    assert plan().clamped(Key("core", 7, 1)) == plan().visits[6]
    assert plan().clamped(Key("core", 1, 1)) == plan().visits[4]
    assert plan().loops == {"pre": 1, "core": 3, "coda": 1}
    assert plan().slots == {"pre": 1, "core": 2, "coda": 1}


def test_copies_are_layers_of_their_own_for_as_many_loops():
    unshared = make_plan([Segment("core", ("a", "b"), loops=2, copies=3), Segment("coda", ("b",))])
    assert [v.layer for v in unshared.visits] == [0, 1, 2, 3, 6]
    assert [v.key for v in unshared.visits[:4]] == [Key("core", t, s) for t in (0, 1) for s in (0, 1)]
    assert unshared.indices("stored") == [1, 2, 1, 2, 3]


def test_rows_are_found_by_key_at_any_loop_count():
    rows = Rows(plan())
    assert rows.of(counted(1)) == [0, 1, 2, 7]
    assert rows.of(counted(5)) == [0, 1, 2, 3, 4, 5, 6, 5, 6, 5, 6, 7]
    assert rows.of(plan().unrolled()) == list(range(8))
    assert (rows.untrained(counted(3)), rows.untrained(counted(4))) == ({}, {"core": 3})
    stored = Rows(plan(), "stored")
    assert stored.of(counted(5)) == [0, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 3]
    assert stored.untrained(counted(5)) == {}
    assert (len(rows), len(stored)) == (8, 4)
    only_b = Rows(plan().of_block("b"))
    assert Key("core", 2, 1) in only_b
    assert Key("core", 2, 0) not in only_b
    assert only_b.of(counted(4).of_block("b")) == [0, 1, 2, 2, 3]
