"""Out of memory: smaller micro-batches, said aloud, with the same numbers."""

import pytest
import torch

from depthkit.utilization import evaluate
from tests.utilization import models

ERRORS = {
    "gpu": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "cpu": RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
    "python": MemoryError(),
}


class Small(models.Mixing):
    """A layer that has memory for so many windows."""

    error: BaseException = ERRORS["gpu"]
    most = 2

    def forward(self, h):
        if len(h) > self.most:
            raise self.error
        return super().forward(h)


@pytest.mark.parametrize("kind", ERRORS)
def test_micro_batches_are_halved_until_they_fit(kind, monkeypatch):
    monkeypatch.setattr(Small, "error", ERRORS[kind])
    model = models.mixing(3, Small)
    sequences = models.tokens(count=6, length=12)
    with pytest.warns(UserWarning, match="out of memory") as warned:
        report = evaluate(model, sequences, ["ablation"], batch_tokens=72)
    assert [str(w.message).rpartition("=")[2] for w in warned] == ["36", "18"]
    assert report.content["timing"]["micro_batch"] == 1
    monkeypatch.setattr(Small, "most", 6)
    whole = evaluate(model, sequences, ["ablation"], batch_tokens=72)
    assert whole.per_visit("ablation_delta_nats.skip") == pytest.approx(
        report.per_visit("ablation_delta_nats.skip"), abs=1e-6
    )


@pytest.mark.filterwarnings("ignore:out of memory")
def test_one_window_that_does_not_fit(monkeypatch):
    monkeypatch.setattr(Small, "most", 0)
    with pytest.raises(ValueError, match="one window of 12 tokens: shorten sequence_length"):
        evaluate(models.mixing(2, Small), models.tokens(length=12), ["stream"])


def test_other_errors_are_not_swallowed(monkeypatch):
    monkeypatch.setattr(Small, "error", RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes"):
        evaluate(models.mixing(2, Small), models.tokens(), ["stream"])
