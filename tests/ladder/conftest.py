"""Shared by the tests of ladders."""

import pytest


@pytest.fixture
def no_pictures(monkeypatch):
    """Drawing takes longer than these ladders do."""
    monkeypatch.setattr("depthkit.ladder.plots.save_plots", lambda summary, folder: [])
    monkeypatch.setattr("depthkit.ladder.hparams.save_hparams", lambda results, folder: None)
    monkeypatch.setattr("depthkit.ladder.page.panels", lambda summary: [])
