"""Who does what, refused where it cannot be, without starting any process."""

import argparse
import json

import pytest

from depthkit import config as c
from depthkit.training.folder import RunFolder
from depthkit.training.parallel.layout import Layout, ParallelConfig
from depthkit.training.parallel.world import ToldElsewhere, told_once, world
from depthkit.training.run import train
from tests.training.helpers import losses
from tests.training.parallel.cases import experts


def parsed(**parallel):
    return ParallelConfig.model_validate(parallel)


@pytest.mark.parametrize(
    ("parallel", "size", "layout"),
    [
        ({}, 1, ("none", 1, 1, 1)),
        ({"data": None}, 2, ("ddp", 2, 2, 1)),
        ({"data": "auto"}, 3, ("ddp", 3, 3, 1)),
        ({"data": "fsdp"}, 1, ("none", 1, 1, 1)),
        ({"data": "fsdp"}, 4, ("fsdp", 4, 1, 4)),
        ({"data": "fsdp", "replicate": 2}, 6, ("fsdp", 6, 2, 3)),
        ({"data": "fsdp", "replicate": 2, "shard": 2, "expert": 4}, 4, ("fsdp", 4, 2, 2, 4)),
    ],
    ids=str,
)
def test_processes_are_replicas_and_shards(parallel, size, layout):
    assert parsed(**parallel).arranged(size) == Layout(*layout)


@pytest.mark.parametrize(
    ("parallel", "size", "words"),
    [
        (
            {"data": "none"},
            2,
            "parallel.data: 'none', but torchrun started 2 processes; allowed: auto, ddp, fsdp",
        ),
        (
            {"data": "fsdp", "replicate": 2, "shard": 2},
            6,
            "replicate 2 x shard 2 is 4, but torchrun started 6",
        ),
        ({"data": "fsdp", "shard": 2}, 1, "torchrun --nproc-per-node=2"),
        ({"data": "ddp", "shard": 2}, 2, "parallel.shard: 2, but ddp shards nothing; allowed: null, 1"),
        ({"data": "ddp", "replicate": 3}, 2, "parallel.replicate: 3"),
        ({"expert": 2}, 3, "parallel.expert: 2 does not divide the 3 processes"),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit_are_refused(parallel, size, words):
    with pytest.raises(ValueError, match="parallel") as error:
        parsed(**parallel).arranged(size)
    assert words in str(error.value)


def test_a_batch_is_divided_evenly():
    assert Layout("ddp", 4, 4, 1).share(12) == 3
    with pytest.raises(ValueError, match=r"train.batch_size: 11 cannot be divided .* such as 8"):
        Layout("ddp", 4, 4, 1).share(11)


def test_experts_need_a_mixture_they_divide(mapping):
    with pytest.raises(ValueError, match=r"parallel.expert: 2, but no block has a mixture of experts"):
        c.parse({**mapping(), "parallel": {"expert": 2}})
    raw = {**mapping(model={"blocks": experts()}), "parallel": {"expert": 3}}
    with pytest.raises(ValueError, match=r"3 does not divide the 4 experts of model.blocks.dense.ffn"):
        c.parse(raw)
    with pytest.raises(ValueError, match="did you mean 'fsdp'"):
        c.parse({**mapping(), "parallel": {"data": "fsd"}})


def test_a_run_is_the_same_among_any_number_of_processes(mapping, tmp_path):
    one, other = (c.parse({**mapping(), "parallel": {"data": data}}) for data in ("ddp", "fsdp"))
    assert c.fingerprint(one) == c.fingerprint(other)
    train(one, tmp_path, quiet=True)
    RunFolder(tmp_path).claim(other, resume=True)
    facts = json.loads((tmp_path / "environment.json").read_text())["parallel"]
    assert facts == {"kind": "none", "world": 1, "replicate": 1, "shard": 1, "expert": 1}
    assert "data" in (tmp_path / "config.yaml").read_text().partition("parallel:")[2]


def test_a_process_started_again_resumes_by_itself(run, tmp_path, monkeypatch):
    arguments = argparse.Namespace(
        dry_run=False, full=False, resume=False, resume_from=None, run_dir=tmp_path, config=None
    )
    train(run(steps=4), tmp_path, quiet=True)
    rows = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "metrics.jsonl").write_text("".join(rows[:-1]))  # as if it had not come to its end
    with pytest.raises(ValueError, match="already holds this run"):
        run(steps=4).execute(arguments)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert run(steps=4).execute(arguments) == 0
    assert losses(tmp_path, "resume", "step") == {4: 4}


def test_torchruns_variables(monkeypatch, capsys):
    assert world() == (0, 1, 0, 0)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert world()[:2] == (1, 2)
    assert not world().is_first
    with pytest.raises(ToldElsewhere), told_once():
        raise ValueError("said by the first")
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(ValueError, match="WORLD_SIZE: 'two'"):
        world()


def test_the_script_under_torchrun(mapping, tmp_path, monkeypatch, capsys):
    import yaml

    import train as script

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("depthkit.training.parallel.world.PATIENCE", 0.0)
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(mapping()))
    assert script.main([str(path), "--dry-run", "parallel.data=fsdp"]) == 0
    shown = capsys.readouterr().out
    assert "fsdp, 2 processes = 1 replicas x 2 shards" in shown
    assert "2 of 4 a process" in shown
    path.write_text(yaml.safe_dump({"kind": "ladder", "base": mapping(), "axes": {"seed": [0, 1]}}))
    assert script.main([str(path), "--dry-run"]) == 2
    assert "torchrun" in capsys.readouterr().err
    monkeypatch.setenv("RANK", "1")
    assert script.main([str(tmp_path / "missing.yaml")]) == 2
    assert capsys.readouterr().err == ""
