"""A ladder small enough to run in a test."""

from tests.models import model_dict


def ladder_dict(**change):
    run = {
        "model": {**model_dict(vocab=None), "vocab_size": None},
        "data": {"sequence_length": 16},
        "train": {"steps": 4, "batch_size": 2, "lr": 1e-2, "threads": 1, "eval_tokens": 64},
    }
    return {
        "kind": "ladder",
        "run": run,
        "axes": {
            "method": {"plain": {"model.regulators": []}, "lns": {"model.regulators": ["lns"]}},
            "depth": [1, 3],
            "seed": [0, 1],
        },
        "compare": [{"axis": "method", "baseline": "plain"}, {"axis": "depth", "baseline": 1}],
        "evaluate": {"sequences": 4, "sequence_length": 16, "html": False, "plots": False},
        "launch": "inline",
        **change,
    }


def leave_pictures_out(monkeypatch):
    """For this test a ladder draws nothing."""
    monkeypatch.setattr("depthkit.ladder.plots.save_plots", lambda summary, folder: [])
    monkeypatch.setattr("depthkit.ladder.hparams.save_hparams", lambda results, folder: None)
    monkeypatch.setattr("depthkit.ladder.page.panels", lambda summary: [])
