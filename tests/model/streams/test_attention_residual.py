import pytest
import torch

from depthkit.model.gains import SiteGains
from tests.model.streams.written import assert_equal_with_gradients, branches, double_model, parameters
from tests.models import make_config, make_ids, make_model


def attend(values, query, gain):
    keys = [gain * v / (v.square().mean(-1, keepdim=True) + 1e-6).sqrt() for v in values]
    alpha = torch.stack([(k * query).sum(-1) for k in keys]).softmax(0)
    return sum(a[..., None] * v for a, v in zip(alpha, values, strict=True))


def full(model, ids):
    """Every output is a value of its own."""
    p = parameters(model)
    values = [p["embed.weight"][ids]]
    for visit, site, branch in branches(model, ids):
        values.append(branch(attend(values, p["query"][visit, site], p["gain"][visit, site])))
    return attend(values, p["readout_query"], p["readout_gain"])


def block(starts):
    """Finished groups and a running sum; `starts` are the visits at which a group begins."""

    def forward(model, ids):
        p = parameters(model)
        finished, running = [p["embed.weight"][ids]], None
        for visit, site, branch in branches(model, ids):
            if site == 0 and visit in starts and running is not None:
                finished.append(running)
                running = None
            values = finished if running is None else [*finished, running]
            y = branch(attend(values, p["query"][visit, site], p["gain"][visit, site]))
            running = y if running is None else running + y
        return attend([*finished, running], p["readout_query"], p["readout_gain"])

    return forward


@pytest.mark.parametrize("loops", [1, 2])
def test_full_form_equals_the_written_out_loop_with_gradients(loops):
    model = double_model({"kind": "attention_residual", "form": "full"}, depth=2, loops=loops)
    assert_equal_with_gradients(model, full)


@pytest.mark.parametrize(
    ("depth", "loops", "groups", "starts"),
    [(4, 1, 2, {0, 2}), (2, 3, 2, {0, 3}), (5, 1, 2, {0, 3}), (3, 1, 8, {0, 1, 2}), (3, 1, 1, {0})],
)
def test_block_form_equals_the_written_out_loop_with_gradients(depth, loops, groups, starts):
    stream = {"kind": "attention_residual", "form": "block", "groups": groups}
    assert_equal_with_gradients(double_model(stream, depth=depth, loops=loops), block(starts))


@pytest.mark.parametrize(("depth", "groups", "sizes"), [(8, 8, [1] * 8), (64, 8, [8] * 8), (12, 8, None)])
def test_groups_are_as_many_as_asked_for_and_end_on_layers(depth, groups, sizes):
    config = make_config(depth=depth, stream={"kind": "attention_residual", "groups": groups})
    slots = config.stream.slots(config.plan())
    assert all(mixer == ffn for mixer, ffn in slots)
    found = [slots.count((1 + g, 1 + g)) for g in range(groups)]
    assert sum(found) == depth
    assert max(found) - min(found) <= 1
    assert sizes is None or found == sizes


@pytest.mark.parametrize("form", ["full", "block"])
def test_at_the_start_every_branch_reads_the_plain_average(form):
    model = make_model(depth=4, stream={"kind": "attention_residual", "form": form, "groups": 2})
    stream, values = model.stream, torch.randn(9, 2, 4, 16)
    expected, state = [values[0]], stream.open(values[0])
    for visit, bank in enumerate(model.schedules.banks(model.plan)):
        for site, maps in enumerate(bank.stream):
            seen, link = stream.read(state, site, maps)
            torch.testing.assert_close(seen, torch.stack(expected).mean(0))
            y = values[1 + 2 * visit + site]
            state = stream.write(state, y, site, link, SiteGains(), maps)
            if form == "full" or (visit, site) in {(0, 0), (2, 0)}:
                expected.append(y)
            else:
                expected[-1] = expected[-1] + y
    closed = stream.close(state, model.schedules.readout())
    torch.testing.assert_close(closed, torch.stack(expected).mean(0))


def test_slots_that_hold_nothing_are_not_attended_to():
    model = make_model(depth=3, stream={"kind": "attention_residual", "form": "full"})
    with torch.no_grad():
        model.schedules.stream_bank.query.normal_()
    x = torch.randn(2, 4, 16)
    maps = model.schedules.banks(model.plan)[2].stream[1]
    seen, _ = model.stream.read(model.stream.open(x), 1, maps)
    torch.testing.assert_close(seen, x)


def test_a_norm_after_the_add_is_refused_with_the_reason():
    for placement in ("post", "huginn"):
        with pytest.raises(ValueError, match=r"no sum to normalise.*'trunk'"):
            make_config(stream="attention_residual", placement=placement)
    assert make_model(stream="attention_residual", placement="sandwich")(make_ids()).hidden.isfinite().all()
