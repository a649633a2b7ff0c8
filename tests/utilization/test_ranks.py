"""Two processes that share the sequences report what one does; `eval.py` under torchrun."""

import contextlib
import io
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from depthkit import config
from depthkit.utilization import PROBES, Sequences, evaluate
from depthkit.utilization.options import ReplayOptions
from tests.models import make_ids, make_model, model_dict, redraw
from tests.training.parallel.processes import spread
from tests.utilization import models
from tests.utilization.families import family

ROOT = Path(__file__).parents[2]
MIXER = {"kind": "gqa", "num_heads": 2, "num_kv_heads": 1}
MOE = {"kind": "moe", "num_experts": 4, "top_k": 2, "hidden_dim": 8, "router": "per_loop"}
SHORT = {
    "cka": {"max_tokens": 24},
    "greedy_drop": {"budget_nats": 1.0, "max_removed": 2},
    "jacobian": {"probes": 1, "token_probes": 1, "iterations": 2},
    "mean_jacobian": {"directions": 3},
    "lens": {"max_logits": 31 * 20},
    "usefulness": {"ridge": 1e-3},
}
"""Settings with which draws leave something out, and little is computed."""
EVERY = [{"kind": name, **SHORT.get(name, {})} for name in PROBES.names() if name != "task_drop"]
PLACES = {"seconds", "processes", "micro_batch", "env"}
"""What a report says of the processes themselves; `env` names the libraries that happen to be imported."""
WINDOW = 9


def mixture():
    """One dense visit, then three loops through a mixture of experts: every probe finds something."""
    blocks = {"dense": {"mixer": MIXER, "ffn": "swiglu"}, "moe": {"mixer": MIXER, "ffn": MOE}}
    segments = [
        {"name": "first", "pattern": ["dense"]},
        {"name": "core", "pattern": ["moe"], "loops": 3, "inject": "add"},
    ]
    return redraw(make_model(dim=8, blocks=blocks, segments=segments), std=0.3).eval()


def ragged(count=5, vocab=31):
    """Windows of several lengths, which no two processes can share evenly."""
    ids = make_ids(count, WINDOW + 1, vocab)
    targets = ids[:, 1:].clone()
    for row in range(count):
        targets[row, WINDOW - row :] = -100
    return Sequences.of_targets(ids[:, :-1].contiguous(), targets)


def of_everything(ranks):
    """Every probe of a model of depthkit's, a window at a time, so that sums are all that differs."""
    return evaluate(mixture(), ragged(), EVERY, batch_tokens=1, ranks=ranks)


def of_another(ranks):
    """The preset `standard`, and stacked streams, of a module that is seen through hooks."""
    sequences = ragged(7, models.VOCAB)
    model, replay = models.mixing(3), ReplayOptions(stack=True)
    return evaluate(
        model,
        sequences,
        "standard",
        batch_tokens=16 * WINDOW,
        null="shuffled_layers",
        replay=replay,
        ranks=ranks,
    )


def script():
    import runpy

    return runpy.run_path(str(ROOT / "eval.py"))["main"]


def said(words):
    """Exit code, output and errors of eval.py."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as error:
        code = script()(words)
    return code, out.getvalue(), error.getvalue()


def shared(run, out):
    """What two processes do in one go."""
    from depthkit.training.parallel.ranks import Group

    torch.set_num_threads(1)
    reports = [(r.content, r.arrays) for r in (of_everything(Group()), of_another(Group()))]
    quick = [run, "html=false", "plots=false", "sequences=5", "preset=states"]
    runs = [
        said([*quick, f"out={out}"]),
        said([*quick, "sequences=1"]),
        said([*quick, "tasks=[agreement]"]),
        said(["compare", out, out]),
    ]
    return reports, runs


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of one step."""
    from depthkit.training.run import train

    folder = tmp_path_factory.mktemp("runs")
    text = folder / "text.txt"
    text.write_text("\n\n".join(f"Verse {i}: the beginning of line {i * 7919 % 1000}." for i in range(200)))
    corpus = {"kind": "files", "paths": [str(text)], "separator": "\n\n", "validation_fraction": 0.3}
    data = {"corpus": corpus, "sequence_length": 16, "cache": str(folder / "cache")}
    steps = {"steps": 1, "batch_size": 2, "lr": 1e-3, "device": "cpu"}
    document = {"model": model_dict(depth=2, vocab=None), "data": data, "train": steps}
    train(config.parse(document), folder / "tiny", quiet=True)
    return folder / "tiny"


@pytest.fixture(scope="module")
def found(run, tmp_path_factory):
    """Reports and runs of the script, by rank; and where the script has written."""
    folder = tmp_path_factory.mktemp("two")
    return spread(shared, str(run), str(folder / "report"), folder=folder, seconds=600), folder / "report"


def differences(one, two, rtol, atol, where=""):
    """Where two nested values differ by more than rounding."""
    if isinstance(one, dict):
        if one.keys() - PLACES != two.keys() - PLACES:
            return [f"{where}: {one.keys() ^ two.keys()}"]
        parts = ((one[name], two[name], f"{where}/{name}") for name in one.keys() - PLACES)
    elif isinstance(one, (list, tuple)):
        if len(one) != len(two):
            return [f"{where}: {len(one)} and {len(two)} entries"]
        parts = ((a, b, f"{where}[{i}]") for i, (a, b) in enumerate(zip(one, two, strict=True)))
    elif isinstance(one, float) and isinstance(two, float):
        return [] if math.isclose(one, two, rel_tol=rtol, abs_tol=atol) else [f"{where}: {one} and {two}"]
    else:
        return [] if one == two else [f"{where}: {one!r} and {two!r}"]
    return [line for part in parts for line in differences(*part[:2], rtol, atol, part[2])]


def equal(report, content, arrays, rtol=1e-6, atol=1e-12):
    assert differences(report.content, content, rtol, atol) == []
    assert report.arrays.keys() == arrays.keys()
    for name, values in report.arrays.items():
        np.testing.assert_allclose(arrays[name], values, rtol, atol, err_msg=name)


def test_every_probe_of_two_processes_is_that_of_one(found):
    alone = of_everything(None)
    ranks, _ = found
    content, arrays = ranks[0][0][0]
    equal(alone, content, arrays)
    assert content["timing"]["processes"] == 2
    told = [set(row) for row in content["per_visit"]]
    for probe in ("experts", "expert_overlap", "loops", "greedy_drop", "jacobian", "usefulness", "cka"):
        assert any(row["probe"] == probe for row in content["metrics"].values()), probe
    assert min(len(row) for row in told) > 60
    assert ranks[1][0][0][0]["per_visit"] == content["per_visit"]  # every process has the whole report


def test_unequal_micro_batches_differ_by_rounding_alone(found):
    ranks, _ = found
    equal(of_another(None), *ranks[0][0][1], rtol=1e-5, atol=1e-6)


def test_the_script_writes_and_speaks_once(found, run, tmp_path):
    ranks, folder = found
    (code, out, error), (other, nothing, quiet) = (each[1][0] for each in ranks)
    assert (code, other) == (0, 0), error + quiet
    assert out.count("report.json") == 1
    assert nothing + quiet == ""
    words = [str(run), "html=false", "plots=false", "sequences=5", "preset=states", f"out={tmp_path}"]
    assert said(words)[0] == 0
    one, two = (json.loads((each / "report.json").read_text()) for each in (tmp_path, folder))
    assert differences(one, two, 1e-5, 1e-6) == []


@pytest.mark.parametrize(
    ("which", "message"),
    [
        (1, "sequences: 1 are fewer than the 2 processes"),
        (2, "tasks: one process does this, and torchrun started 2"),
        (3, "compare: one process does this, and torchrun started 2"),
    ],
)
def test_mistakes_are_told_once(found, which, message):
    ranks, _ = found
    told = [each[1][which] for each in ranks]
    assert [code for code, _, _ in told] == [2, 2]
    assert "".join(error for _, _, error in told).count("error: ") == 1
    assert message in told[0][2] + told[1][2]


@pytest.fixture
def target(request, run, tmp_path):
    """The words that name a run, or a Hugging Face model with its data."""
    if request.param == "run":
        return [str(run)]
    family("mixtral").save_pretrained(tmp_path / "mixtral")
    np.save(tmp_path / "ids.npy", np.random.default_rng(0).integers(3, 97, 200))
    return [str(tmp_path / "mixtral"), f"data={tmp_path / 'ids.npy'}", "sequence_length=16"]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["run", "pretrained"], indirect=True)
def test_torchrun(target, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "eval.py"]
    words = [*target, "html=false", "plots=false", "sequences=5", "preset=standard", "device=cpu"]
    done = subprocess.run(
        [*command, *words, f"out={tmp_path / 'two'}"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("report.json") == 1
    assert said([*words, f"out={tmp_path / 'one'}"])[0] == 0
    one, two = (json.loads((tmp_path / name / "report.json").read_text()) for name in ("one", "two"))
    assert differences(one, two, 1e-4, 1e-5) == []
