"""Structure by data flow: odd names, decoys, loops, parallel branches, missing parts, paths that overrule."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from depthkit.utilization import Sequences, Subject, evaluate
from depthkit.utilization.canaries import CanaryError
from depthkit.utilization.replay import Engine
from depthkit.utilization.structure import find_layers
from tests.utilization.models import DIM, VOCAB, Mixing, tokens


class Branchy(nn.Module):
    """A layer of two branches, one after the other or side by side."""

    def __init__(self, parallel=False):
        super().__init__()
        self.calm, self.peer, self.think = nn.LayerNorm(DIM), Peer(), nn.Linear(DIM, DIM)
        self.steady = nn.LayerNorm(DIM)
        self.parallel = parallel

    def forward(self, h):
        seen = h + self.peer(self.calm(h))
        if self.parallel:
            return seen + self.think(self.calm(h))
        return seen + 0.5 * self.think(self.steady(seen))


class Peer(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = nn.Linear(DIM, DIM)

    def forward(self, h):
        return self.map(h.cumsum(1))


class Odd(nn.Module):
    """No usual name anywhere, no read_out; scale and soft cap in the forward itself."""

    def __init__(self, stages, tidy=True, order=None):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(VOCAB, DIM)
        self.decoy = nn.ModuleList([nn.Linear(DIM, DIM) for _ in range(4)])  # runs, but hands nothing on
        self.idle = nn.ModuleList([Mixing(), Mixing()])  # never runs
        self.stages = nn.ModuleList(stages)
        self.tidy = nn.LayerNorm(DIM) if tidy else None
        self.speak = nn.Linear(DIM, VOCAB)
        self.order = order or range(len(stages))

    def forward(self, ids):
        h = self.words(ids)
        h = h + sum(part(h) for part in self.decoy)
        for index in self.order:
            h = self.stages[index](h)
        return self.tail(h)

    def tail(self, h):
        h = h if self.tidy is None else self.tidy(h)
        return 4 * torch.tanh(self.speak(h) / 3)


def test_names_and_decoys_do_not_matter():
    model = Odd([Mixing(), Mixing(), Mixing()])
    subject = Subject(model)
    assert subject.layers == list(model.stages)
    assert subject.structure.final_norm == "tidy"
    assert subject.structure.head == "speak"
    state = torch.randn(2, 5, DIM)
    with torch.no_grad():
        torch.testing.assert_close(subject.read_out(state), model.tail(state))
    assert evaluate(model, tokens(), ["ablation"]).depth == 3


def test_read_out_lets_gradients_through():
    model = Odd([Mixing(), Mixing()])
    subject = Subject(model)
    state = torch.randn(1, 4, DIM, requires_grad=True)
    (found,) = torch.autograd.grad(subject.read_out(state).sum(), state)
    (wanted,) = torch.autograd.grad(model.tail(state).sum(), state)
    torch.testing.assert_close(found, wanted)


def test_branches_by_data_flow():
    inside = Subject(Odd([Branchy(), Branchy()])).structure.inside[0]
    assert (inside.branches.middle, inside.branches.mixer, inside.branches.ffn) == ("steady", "peer", "think")


def test_parallel_branches_are_left_out_with_the_reason():
    model = Odd([Branchy(parallel=True), Branchy()])
    report = evaluate(model, tokens(), ["stream"])
    (skipped,) = [row for row in report.content["skipped"] if row["metric"] == "sublayers"]
    assert skipped["reason"].startswith("1 of 2 layers, such as 0: its branches run in parallel")


def test_one_branch_is_not_taken_for_parallel_ones():
    (inside,) = Subject(Odd([Mixing()])).structure.inside
    assert inside.branches is None
    assert "parallel" not in inside.reason


def test_no_final_norm_and_no_head_module():
    model = Odd([Mixing(), Mixing()], tidy=False)
    model.tail = lambda h: F.linear(h, model.words.weight)
    subject = Subject(model)
    assert subject.structure.final_norm is None
    assert subject.structure.head is None
    state = torch.randn(1, 7, DIM)
    with torch.no_grad():
        torch.testing.assert_close(subject.read_out(state), model.tail(state))


def test_loops_are_keyed_by_call_order():
    model = Odd([Mixing(), Mixing()], order=[0, 1, 0, 1, 0])
    subject = Subject(model)
    with subject.frozen():
        engine = Engine(subject, Sequences.of(tokens()))
        places = engine.places(engine.record()[0])
    assert [(place.loop, place.slot) for place in places] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]
    report = evaluate(model, tokens(), ["ablation"])
    assert report.depth == 5
    assert len(set(report.per_visit("ablation_delta_nats.skip"))) == 5


class InThree(Odd):
    """A prelude, a looped core and a coda, each a list of its own."""

    def __init__(self):
        super().__init__([Mixing()])
        self.prelude, self.core, self.coda = (
            nn.ModuleList([Mixing() for _ in range(count)]) for count in (1, 2, 1)
        )
        self.stages = None

    def forward(self, ids):
        h = self.words(ids)
        for layer in (*self.prelude, *self.core, *self.core, *self.coda):
            h = layer(h)
        return self.tail(h)


def test_prelude_core_and_coda_are_taken_together():
    model = InThree()
    found = Subject(model)
    assert found.layers == [*model.prelude, *model.core, *model.coda]
    assert evaluate(model, tokens(), ["ablation"]).depth == 6
    chosen = Subject(model, layers=["prelude", "core", "coda"])
    assert chosen.layers == found.layers


@pytest.mark.parametrize("named", ["stages", ["stages.0", "stages.1", "stages.2"]])
def test_layers_by_path(named):
    model = Odd([Mixing(), Mixing(), Mixing()])
    assert Subject(model, layers=named).layers == list(model.stages)


def test_final_norm_and_head_by_path():
    model = Odd([Mixing(), Mixing()])
    model.tail = lambda h: model.speak(model.tidy(h))
    subject = Subject(model, final_norm="tidy", head="speak")
    state = torch.randn(1, 3, DIM)
    with torch.no_grad():
        assert torch.equal(subject.read_out(state), model.tail(state))
    assert subject.describe(2, DIM)["structure"]["read_out"] == "head(final_norm(state))"
    model.tail = lambda h: F.linear(model.tidy(h), model.words.weight)
    with torch.no_grad():
        torch.testing.assert_close(Subject(model, head="words").read_out(state), model.tail(state))


def test_a_head_that_leaves_something_out_is_caught():
    with pytest.raises(CanaryError, match="lens_last_state"):
        evaluate(Subject(Odd([Mixing(), Mixing()]), head="speak"), tokens(), ["stream"])


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ({"layers": "stagges"}, "did you mean 'stages'"),
        ({"layers": "idle"}, "none of idle was called"),
        ({"head": "speek"}, "did you mean 'speak'"),
        ({"final_norm": "speak"}, r"final_norm: speak does not read the last layer's state \(tidy\)"),
    ],
)
def test_paths_that_do_not_fit(paths, message):
    with pytest.raises(ValueError, match=message):
        Subject(Odd([Mixing(), Mixing()]), **paths)


class NoList(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.parts = nn.Embedding(VOCAB, DIM), nn.ModuleList([nn.Linear(DIM, VOCAB)])

    def forward(self, ids):
        return self.parts[0](self.words(ids))


def test_no_layers_names_the_candidates():
    with pytest.raises(ValueError, match=r"no list of layers that hand a state on \(parts\): pass layers="):
        Subject(NoList())


def test_no_head_at_all():
    class Output(dict):
        pass

    class Headless(Odd):
        def tail(self, h):
            return Output(last_hidden_state=h)

    with pytest.raises(ValueError, match="give a model that has its language-model head"):
        Subject(Headless([Mixing(), Mixing()]))


def test_document_numbers_need_a_model_that_takes_them():
    ids = torch.ones(2, 4, dtype=torch.int64)
    with pytest.raises(ValueError, match="takes no document numbers"):
        evaluate(Odd([Mixing()]), Sequences.of_targets(ids, ids, ids), ["stream"])


def test_a_compiled_model_is_unwrapped():
    """Hooks that are added after compilation never run."""
    model = Odd([Mixing(), Mixing()])
    assert Subject(torch.compile(model, backend="eager")).model is model


class Gated(nn.Module):
    """Experts behind a router that returns scores only, or scores and indices."""

    def __init__(self, indices):
        super().__init__()
        self.narrow = nn.Linear(DIM, 4)  # as wide as there are experts, but not beside them
        self.inner = Experts(indices)

    def forward(self, h):
        return h + self.narrow(h).sum(-1, keepdim=True) + self.inner(h)


class Experts(nn.Module):
    def __init__(self, indices):
        super().__init__()
        self.choose = Chooser() if indices else nn.Linear(DIM, 4)
        self.experts = nn.ModuleList([nn.Linear(DIM, DIM) for _ in range(4)])

    def forward(self, h):
        scores = self.choose(h)[0] if isinstance(self.choose, Chooser) else self.choose(h)
        return sum(expert(h) * scores[..., i : i + 1] for i, expert in enumerate(self.experts))


class Chooser(nn.Linear):
    def __init__(self):
        super().__init__(DIM, 4)

    def forward(self, h):
        scores = super().forward(h)
        return scores, scores.topk(2).indices


@pytest.mark.parametrize(("indices", "top_k"), [(True, 2), (False, None)])
def test_router_by_data_flow(indices, top_k):
    model = Odd([Gated(indices), Mixing()])
    model.config = type("Config", (), {"num_local_experts": 4})()
    first, second = Subject(model).structure.inside
    assert (first.router.path, first.router.num_experts, first.router.top_k) == ("inner.choose", 4, top_k)
    assert second.router is None


def test_structure_alone_needs_a_usual_name():
    model = Odd([Mixing()])
    with pytest.raises(ValueError, match=r"found no single layer list \(decoy, idle, stages\)"):
        find_layers(model)
