"""Every regulator with every norm, feed-forward and stream: it works, looped and unrolled alike, or is refused."""

import pytest
import torch

from depthkit.model import Transformer, unroll
from depthkit.model.registries import FFNS, NORMS, REGULATORS, STREAMS
from tests.model.loops.written import FULL, RANDOM, moe, segments
from tests.model.regulators import kit
from tests.models import make_config, redraw

MIXER = {"kind": "gqa", "num_heads": 2, "num_kv_heads": 1, "qk_norm": True}
PARTNERS = [
    *({"norm": name} for name in NORMS.names()),
    *({"blocks": {"dense": {"mixer": MIXER, "ffn": name}}} for name in FFNS.names()),
    *({"stream": name} for name in STREAMS.names()),
    {"segments": segments(FULL, loops=2)},
    {"segments": segments(RANDOM, loops=2), **moe(router="per_loop", bias_rate=0.1)},
]


def refusal(case, partner):
    """The config, or the reason why these do not go together."""
    try:
        return make_config(
            **{"depth": 2, "loops": 2, "regulators": [case.regulator], **case.surroundings, **partner}
        )
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize(("case", "partner"), kit.with_partners(PARTNERS))
def test_it_works_with_every_norm_ffn_and_stream_or_says_why_not(case, partner):
    config = refusal(case, partner)
    if isinstance(config, str):
        assert any(part in config for part in ("does not work", f"regulators.{case.kind}: ", "stream: "))
        return
    model = redraw(Transformer(config)).eval()
    hidden, loss = kit.run(model)
    loss.backward()
    assert torch.isfinite(hidden).all()
    for name, parameter in model.schedules.regulators.named_parameters():
        assert (parameter.grad != 0).any(), name
    assert torch.equal(kit.run(unroll(model))[0], hidden)


@pytest.mark.parametrize("first", REGULATORS.names())
def test_any_two_regulators_multiply_or_are_refused(first):
    case, alone = kit.Case(first), {}
    for second in REGULATORS.names():
        together = refusal(case, {"regulators": [case.regulator, second]})
        if isinstance(together, str):
            assert f"regulators.{first}: " in together or f"regulators.{second}: " in together
            continue
        key = str(together.norm)
        if key not in alone:
            alone[key] = gains_of(case, [first], together.norm)
        one, other, both = (
            alone[key],
            *(gains_of(case, kinds, together.norm) for kinds in ([second], [first, second])),
        )
        for name in ("read", "write", "skip", "logits"):
            parts = [g for gains in (one, other) if (g := getattr(gains, name)) is not None]
            product = torch.ones(1)
            for part in parts:
                product = product * part
            if parts:
                torch.testing.assert_close(getattr(both, name), product)


def gains_of(case, kinds, norm):
    model = case.model(depth=2, loops=2, regulators=kinds, norm=norm).eval()
    return model.schedules(model.plan)
