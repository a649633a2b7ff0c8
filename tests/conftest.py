"""Shared by all tests: one thread, and small models from plain mappings."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    import torch

    torch.set_num_threads(1)
