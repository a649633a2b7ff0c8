"""What ranks are given adds up to what one process has."""

import pytest
import torch

from depthkit.data import Batch
from depthkit.model.loops.states import EVALUATION, Noise, TruncatedNormal
from depthkit.training import checkpoint
from depthkit.training.parallel.ranks import Ranks
from depthkit.training.parallel.shares import held_out_share, share
from depthkit.training.telemetry import DepthTelemetry

CPU = torch.device("cpu")


class Fake(Ranks):
    """A rank that is only asked for its number."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size


def ranks(size):
    return [Fake(rank, size) for rank in range(size)]


def batch(rows, documents=True):
    generator = torch.Generator().manual_seed(rows)
    ids = torch.randint(0, 9, (rows, 5), generator=generator)
    targets = ids.masked_fill(torch.rand(rows, 5, generator=generator) < 0.4, -100)
    return Batch(ids, targets, ids + 1 if documents else None, 7, loops=3)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_slices_make_up_the_batch(size):
    whole = batch(6)
    parts = [share(whole, rank, CPU) for rank in ranks(size)]
    for name in ("ids", "targets", "documents"):
        assert torch.equal(torch.cat([getattr(p.batch, name) for p in parts]), getattr(whole, name))
    assert sum(part.own for part in parts) == whole.num_scored
    assert {part.scored for part in parts} == {whole.num_scored}
    assert [part.rows for part in parts] == [(6 // size * rank, 6) for rank in range(size)]
    assert all(part.batch.loops == 3 for part in parts)


@pytest.mark.parametrize("rows", [1, 4, 5])
@pytest.mark.parametrize("documents", [True, False])
def test_held_out_batches_are_filled_up_with_nothing_scored(rows, documents):
    whole = batch(rows, documents)
    parts = [held_out_share(whole, rank) for rank in ranks(3)]
    assert len({part.ids.shape for part in parts}) == 1
    joined = torch.cat([part.targets for part in parts])
    assert torch.equal(joined[:rows], whole.targets)
    assert (joined[rows:] == -100).all()
    assert torch.equal(torch.cat([part.ids for part in parts])[:rows], whole.ids)
    assert (parts[0].documents is not None) == documents
    assert held_out_share(whole, Ranks()) is whole


def test_noise_of_a_slice_is_a_slice_of_the_noise():
    draw = TruncatedNormal(TruncatedNormal.Config())
    e = torch.zeros(6, 4, 3)
    whole = draw(e, Noise(5))
    assert torch.equal(draw(e[2:4], Noise(5, rows=(2, 6))), whole[2:4])
    assert not torch.equal(draw(e[2:4], Noise(5)), whole[2:4])
    assert torch.equal(draw(e, Noise(5, rows=(0, 6))), whole)
    assert torch.equal(draw(e[2:4], EVALUATION), draw(e, EVALUATION)[2:4])


@pytest.mark.parametrize("sample", [3, 5, 24, 100])
def test_telemetry_samples_the_tokens_that_one_process_would(sample):
    stream = torch.arange(24.0).view(4, 6, 1)
    expected = DepthTelemetry(sample)._sampled(stream)
    found = []
    for rank, part in zip(ranks(2), stream.split(2), strict=True):
        telemetry = DepthTelemetry(sample)
        telemetry.watch(1.0, rank)
        found.append(telemetry._sampled(part))
    assert torch.equal(torch.cat(found), expected)


def test_a_sharded_checkpoint_is_verified_shard_by_shard(tmp_path):
    unfinished = checkpoint.begin(tmp_path, 3, ["model", "optim"])
    for part in ("model", "optim"):
        (unfinished / part / "shard-00001.safetensors").write_text(part)
    assert checkpoint.steps(tmp_path) == []
    checkpoint.complete(unfinished, tmp_path, 3, {"a": 1}, keep=2)
    assert checkpoint.latest(tmp_path) == 3
    folder = tmp_path / "step_00000003"
    assert checkpoint.read_state(folder) == {"a": 1, "step": 3}
    (folder / "optim" / "shard-00001.safetensors").write_text("other")
    with pytest.raises(checkpoint.CheckpointError, match=r"optim/shard-00001.safetensors is damaged"):
        checkpoint.read_state(folder)
    assert not list(tmp_path.glob(".*"))
