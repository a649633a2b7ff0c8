"""Shared by the tests of ladders."""

import pytest

from tests.ladder.ladders import leave_pictures_out


@pytest.fixture
def no_pictures(monkeypatch):
    """Drawing takes longer than these ladders do."""
    leave_pictures_out(monkeypatch)
