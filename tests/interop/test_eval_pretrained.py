"""`python eval.py` on a Hugging Face folder: from files to report, and what it says when something is wrong."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from depthkit.utilization import Sequences, evaluate
from tests.utilization.families import family

ROOT = Path(__file__).parents[2]
QUICK = ["sequences=4", "sequence_length=12", "plots=false", "html=false"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with two saved models and a file of token ids."""
    folder = tmp_path_factory.mktemp("place")
    family("llama").save_pretrained(folder / "tiny")
    family("gptj").save_pretrained(folder / "parallel")
    np.save(folder / "ids.npy", np.random.default_rng(0).integers(3, 97, 200))
    return folder


def read(folder):
    return json.loads((folder / "report.json").read_text())


def test_from_folder_to_report(script, place, tmp_path, capsys):
    words = [str(place / "tiny"), f"data={place / 'ids.npy'}", f"out={tmp_path}", *QUICK]
    assert script.main(words) == 0
    report = read(tmp_path)
    model = report["model"]
    assert (model["name"], model["depth"], model["num_layers"], model["dim"]) == ("tiny", 6, 6, 32)
    assert (model["dtype"], model["attn_implementation"], model["revision"]) == ("float32", "sdpa", None)
    assert model["path"] == str(place / "tiny")
    assert model["structure"]["layers"] == ["model.layers"]
    assert report["data"]["name"] == str(place / "ids.npy")
    assert report["data"]["n_seq"] == 4
    assert "transformers" in report["env"]
    assert [row["block"] for row in report["per_visit"]] == ["dense"] * 6
    assert report["skipped"] == []
    assert "tiny: 6 layers, counted from 0" in capsys.readouterr().out


def test_the_loss_is_the_models_own(script, place, tmp_path):
    words = [str(place / "tiny"), f"data={place / 'ids.npy'}", f"out={tmp_path}", *QUICK, "sequences=100"]
    assert script.main([*words, "probes=[stream]"]) == 0
    ids = torch.from_numpy(np.load(place / "ids.npy"))
    rows = [ids[start : start + 13] for start in range(0, 199, 12)]
    with torch.no_grad():
        losses = [len(row[1:]) * family("llama")(row[None], labels=row[None]).loss for row in rows]
    assert read(tmp_path)["baseline"]["loss_nats"] == pytest.approx(float(sum(losses)) / 199, rel=1e-5)


def test_parallel_branches_are_said(script, place, tmp_path, capsys):
    words = [str(place / "parallel"), f"data={place / 'ids.npy'}", f"out={tmp_path}", *QUICK]
    assert script.main(words) == 0
    (skipped,) = read(tmp_path)["skipped"]
    assert skipped["metric"] == "sublayers"
    assert "parallel" in skipped["reason"]
    assert "Left out: sublayers" in capsys.readouterr().out


def test_short_number_types(script, place, tmp_path):
    words = [str(place / "tiny"), f"data={place / 'ids.npy'}", f"out={tmp_path}", *QUICK, "dtype=bfloat16"]
    assert script.main(words) == 0
    assert read(tmp_path)["model"]["dtype"] == "bfloat16"


def test_reports_of_two_models_on_the_same_ids_are_compared(script, place, tmp_path):
    for name in ("tiny", "parallel"):
        words = [str(place / name), f"data={place / 'ids.npy'}", f"out={tmp_path / name}", *QUICK]
        assert script.main(words) == 0
    words = ["compare", str(tmp_path / "tiny"), str(tmp_path / "parallel"), f"out={tmp_path / 'both'}"]
    assert script.main([*words, "plots=false", "html=false"]) == 0


def test_the_report_goes_to_a_folder_of_that_name(script, place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted((place / "tiny").iterdir())
    words = [str(place / "tiny"), f"data={place / 'ids.npy'}", "probes=[stream]", *QUICK]
    assert script.main(words) == 0
    assert (tmp_path / "reports" / "tiny" / "report.json").is_file()
    assert sorted((place / "tiny").iterdir()) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["checkpoints=all"], "one model, not a run"),
        (["dtype=float64"], "'float32', 'bfloat16' or 'float16'"),
        (["subject.layers=model.layer"], "did you mean 'model.layers'"),
        (["subject.lyers=x"], "did you mean 'layers'"),
        (["subject.final_norm=lm_head"], "does not read the last layer's state (model.norm)"),
        (["sequence_length=300"], "longer than the model's context of 256"),
        (["data=kjv"], "data=tokens.npy"),
    ],
)
def test_mistakes_exit_2(script, place, words, message, capsys):
    assert script.main([str(place / "tiny"), f"data={place / 'ids.npy'}", *QUICK, *words]) == 2
    assert message in capsys.readouterr().err


def test_a_name_that_cannot_be_had_exits_2(script, monkeypatch, capsys):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.warns(UserWarning, match="looking for 'nobody/nothing'"):
        assert script.main(["nobody/nothing"]) == 2
    assert "no such run, checkpoint or model folder" in capsys.readouterr().err


def test_in_python_without_any_setting(place):
    """A loaded model and its ids are enough."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(place / "tiny", dtype=torch.float32)
    report = evaluate(model, Sequences.of(torch.randint(0, 97, (3, 9))), ["ablation"])
    assert report.depth == 6
